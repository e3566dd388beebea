"""Products in 8 bits: how exact they and their gradients are, on which devices they are computed, and what else is."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.nn import functional

from modules.quantization import products
from modules.quantization.linear import QuantizedLinear
from modules.quantization.packing import FLOAT8_ROWS, INT8_ROWS, Rows
from modules.quantization.registry import COMPUTED
from tests.builders.pretended_gpu import CAN_PRETEND, pretended_gpu
from tests.training.test_quantization import ERRORS, W8A8, random_input, random_layer, relative

needs_pretending = pytest.mark.skipif(not CAN_PRETEND, reason="needs torch's build for CPUs on Linux")


@pytest.fixture(autouse=True)
def _forget() -> None:
    """What is known of the pretended devices of other tests is forgotten."""
    for function in (products._has_product, products._takes_row_scales, products._log_once):
        function.forget()  # type: ignore[attr-defined]


@pytest.fixture
def in_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in float8, too, are computed in 8 bits by the CPU."""
    monkeypatch.setattr(products, "computes_in_8_bits", lambda packed: True)


def passed(layer: nn.Module, x: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the gradient of x."""
    x = x.detach().requires_grad_()
    found = layer(x)
    return found.detach(), torch.autograd.grad(found, x, gradient)[0]


@pytest.mark.parametrize("name", W8A8)
def test_rounded_inputs_are_close_on_a_cpu(name: str) -> None:
    layer, x, gradient = QuantizedLinear(random_layer(), COMPUTED[name]), random_input(2, 3, 80), random_input(2, 3, 48)
    found, of_x = passed(layer, x, gradient)
    assert 0 < relative(found, functional.linear(x, layer.weight, layer.bias)) < ERRORS[name]
    assert relative(of_x, gradient @ layer.weight) < (0.01 if name == "int8_w8a8" else 1e-5)


@pytest.mark.parametrize("inputs", [1, 2, 16, 1040])
def test_the_largest_int8_values_are_multiplied_exactly_by_any_cpu(inputs: int) -> None:
    """torch._int_mm saturated on a CPU without VNNI, and returned random values of one input on each."""
    signs = torch.tensor([[1], [-1], [1], [-1]], dtype=torch.int8)
    largest = (127 * signs).expand(-1, inputs).contiguous()
    exact = 127 * 127 * inputs * (signs * signs.T).long()
    assert torch.equal(products._int_product(largest, largest).long(), exact)


@pytest.mark.usefixtures("in_8_bits")
@pytest.mark.parametrize(("name", "least"), [("int8_w8a8", 0.9988), ("float8_w8a8", 0.9988)])
@pytest.mark.parametrize("spread", ["even", "tokens", "channels", "values"])
def test_the_gradient_has_the_direction_of_that_of_the_layer_in_16_bits(name: str, least: float, spread: str) -> None:
    """Measured 0.9993 and more for each format; the values spread over e**-4 to e**4 along what is named."""
    exact = random_layer(64, 96).bfloat16()
    generator = torch.Generator().manual_seed(5)
    shape = {"even": (), "tokens": (40, 1), "channels": (1, 64), "values": (40, 64)}[spread]
    spreads = torch.exp(1.5 * torch.randn(shape, generator=generator)) if shape else torch.ones(())
    gradient = (torch.randn(40, 64, generator=generator) * spreads).bfloat16()
    x = random_input(40, 96, dtype=torch.bfloat16)
    expected, of_x = passed(exact, x, gradient)
    found, found_of_x = passed(QuantizedLinear(exact, COMPUTED[name]), x, gradient)
    for a, b in ((found, expected), (found_of_x, of_x)):
        assert least < functional.cosine_similarity(a.float().flatten(), b.float().flatten(), dim=0) < 1
        assert float(a.float().norm() / b.float().norm()) == pytest.approx(1, abs=0.015)


@pytest.mark.parametrize("name", W8A8)
def test_computing_in_8_bits_and_with_unpacked_weights_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a GPU, whose two products a CPU has, too, against the way of all other devices."""
    layer, x = QuantizedLinear(random_layer(), COMPUTED[name]), random_input(5, 80)
    results = []
    for in_8_bits in (True, False):
        monkeypatch.setattr(products, "computes_in_8_bits", lambda _, way=in_8_bits: way)
        results.append(layer(x))
    assert not torch.equal(results[0], functional.linear(x, layer.weight, layer.bias))
    assert torch.allclose(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("in_8_bits")
@pytest.mark.parametrize("name", W8A8)
def test_a_token_does_not_depend_on_its_batch(name: str) -> None:
    layer, x, gradient = QuantizedLinear(random_layer(), COMPUTED[name]), random_input(5, 80), random_input(5, 48)
    x[1] *= 1e3
    gradient[1] *= 1e3
    for alone, together in zip(passed(layer, x[:1], gradient[:1]), passed(layer, x, gradient), strict=True):
        assert torch.allclose(together[:1], alone, rtol=1e-5, atol=1e-5)


@needs_pretending
@pytest.mark.parametrize("rows", [INT8_ROWS, FLOAT8_ROWS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tokens_are_rounded_to_the_same_bits_on_a_gpu(rows: Rows, dtype: torch.dtype) -> None:
    tokens = random_input(64, 80) * torch.logspace(-6, 2, 64)[:, None]
    tokens[3] = 0
    tokens[4, ::2] = 0
    tokens = tokens.to(dtype)
    expected = products.round_tokens(tokens, rows)
    with pretended_gpu():
        there = tokens.to("cuda")
        for given in (there, there.T.contiguous().T):  # attention's inputs may be transposed in memory
            found = products.round_tokens(given, rows)
            assert all(torch.equal(a.cpu().float(), b.float()) for a, b in zip(found, expected, strict=True))


@needs_pretending
@pytest.mark.parametrize(("name", "tolerance"), [("int8_w8a8", 1e-6), ("float8_w8a8", 0.01)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_tokens", [1, 40, 300])
def test_a_gpu_computes_what_a_cpu_does(
    name: str, tolerance: float, dtype: torch.dtype, num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one token the product is padded; of 300 in bfloat16 it takes scales of rows, as a few do not."""
    layer = QuantizedLinear(random_layer(48, 64).to(dtype), COMPUTED[name])
    x, gradient = random_input(num_tokens, 64, dtype=dtype), random_input(num_tokens, 48, dtype=dtype)
    with monkeypatch.context() as patch:
        patch.setattr(products, "computes_in_8_bits", lambda packed: True)
        expected = passed(layer, x, gradient)
    with pretended_gpu(), monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
        found = passed(layer.to("cuda"), x.to("cuda"), gradient.to("cuda"))
        assert products.computes_in_8_bits(layer.packed)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == dtype
            assert relative(a.cpu(), b) <= tolerance


@pytest.mark.usefixtures("in_8_bits")
def test_a_gpu_that_takes_no_scales_of_rows_scales_the_product(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    layer = QuantizedLinear(random_layer(48, 64).bfloat16(), COMPUTED["float8_w8a8"])
    x, gradient = random_input(300, 64, dtype=torch.bfloat16), random_input(300, 48, dtype=torch.bfloat16)
    expected, compute = passed(layer, x, gradient), torch._scaled_mm

    def without_rows(*args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
        if kwargs["scale_a"].numel() > 1:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED")
        return compute(*args, **kwargs)

    monkeypatch.setattr(torch, "_scaled_mm", without_rows)
    products._takes_row_scales.forget()  # type: ignore[attr-defined]
    with caplog.at_level(logging.INFO, "darkroom.quantization"):
        found = passed(layer, x, gradient)
    assert "takes no scales of rows" in caplog.text
    assert all(relative(a, b) < 0.01 for a, b in zip(found, expected, strict=True))


@needs_pretending
@pytest.mark.parametrize(
    ("name", "capability", "inner", "said"),
    [
        ("float8_w8a8", (8, 6), 64, "float8, which needs compute capability 8.9; this GPU has 8.6"),
        ("int8_w8a8", (7, 0), 64, "int8, which needs compute capability 7.5; this GPU has 7.0"),
        ("int8_w8a8", (9, 0), 60, "not multiples of 8 are computed in 16 bits, not in int8"),
        ("float8_w8a8", (9, 0), 72, "not multiples of 16 are computed in 16 bits, not in float8"),
    ],
)
def test_what_has_no_product_is_computed_in_16_bits_and_said_once(
    name: str,
    capability: tuple[int, int],
    inner: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    layer, x = QuantizedLinear(random_layer(48, inner).bfloat16(), COMPUTED[name]), random_input(5, inner)
    gradient = random_input(5, 48, dtype=torch.bfloat16)
    with pretended_gpu(), monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        there = layer.to("cuda")
        for _ in range(2):
            _, of_x = passed(there, x.bfloat16().to("cuda"), gradient.to("cuda"))
        assert relative(of_x.cpu(), gradient.float() @ there.weight.float().cpu()) < 0.005  # it was not rounded
    assert caplog.text.count(said) == 1


@pytest.mark.usefixtures("in_8_bits")
@pytest.mark.parametrize("name", W8A8)
def test_a_compiled_layer_is_one_graph_with_the_same_results(name: str) -> None:
    layer = QuantizedLinear(random_layer(48, 64).bfloat16(), COMPUTED[name])
    x, gradient = random_input(8, 64, dtype=torch.bfloat16), random_input(8, 48, dtype=torch.bfloat16)
    expected = passed(layer, x, gradient)
    found = passed(torch.compile(layer, backend="aot_eager", fullgraph=True), x, gradient)
    assert all(relative(a, b) < 0.005 for a, b in zip(found, expected, strict=True))
