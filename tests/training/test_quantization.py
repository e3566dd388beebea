"""Quantized frozen weights: what is stored, what is computed, and its gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from modules.data.cache.store import CacheStore
from modules.quantization.linear import QuantizedLinear, quantize_layers
from modules.quantization.packing import (
    NF4_BLOCKS,
    PackedData,
    _has_kernels,
    low_rank_product,
    pack_weight,
    unpack_by_bitsandbytes,
)
from modules.quantization.registry import COMPUTED, ChosenFormat, Residual
from modules.settings.layer_filter import EVERYTHING, LayerFilter
from tests.builders.pretended_gpu import CAN_PRETEND, pretended_gpu

# The error of a weight of normal numbers, relative to its norm: int8 rounds to 1/254 of a row's largest value, e4m3 has
# 3 bits of mantissa, NF4's error is that of Dettmers et al. 2023, table 2.
ERRORS = {"int8": 0.012, "float8": 0.04, "nfloat4": 0.11, "int8_w8a8": 0.012, "float8_w8a8": 0.04}
WEIGHT_ONLY = [name for name, form in COMPUTED.items() if not form.rounds_inputs]
W8A8 = [name for name, form in COMPUTED.items() if form.rounds_inputs]


def random_layer(out: int = 48, inner: int = 80, *, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(inner, out, bias=bias)
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return layer


def random_input(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2)).to(dtype)


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    found, exact = found.detach().float(), exact.detach().float()
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("name", COMPUTED)
def test_a_weight_is_stored_in_the_bytes_of_its_record(name: str) -> None:
    for out, inner in ((48, 80), (7, 9), (64, 64)):
        layer = QuantizedLinear(random_layer(out, inner), COMPUTED[name])
        assert layer.packed.nbytes + layer.scales.nbytes == COMPUTED[name].stored_bytes((out, inner))
        assert layer.weight.shape == (out, inner)
        assert set(layer.state_dict()) == {"packed", "scales", "bias"}


@pytest.mark.parametrize("name", COMPUTED)
def test_the_weight_is_close_to_what_it_was(name: str) -> None:
    layer = random_layer()
    found = QuantizedLinear(layer, COMPUTED[name]).weight
    assert 0.2 * ERRORS[name] < relative(found, layer.weight) < ERRORS[name]


@pytest.mark.parametrize("name", COMPUTED)
def test_a_row_of_zeros_and_a_row_of_large_values_survive(name: str) -> None:
    layer = random_layer(2, 128)
    with torch.no_grad():
        layer.weight[0] = 0
        layer.weight[1] *= 1e4
    found = QuantizedLinear(layer, COMPUTED[name]).weight
    assert torch.equal(found[0], torch.zeros(128))
    assert relative(found[1], layer.weight[1]) < 0.12


@pytest.mark.parametrize("name", COMPUTED)
def test_the_same_weight_is_packed_to_the_same_bytes(name: str) -> None:
    one, other = (QuantizedLinear(random_layer(), COMPUTED[name]) for _ in range(2))
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(
        (one.packed, one.scales), (other.packed, other.scales), strict=True
    ))  # fmt: skip


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", WEIGHT_ONLY)
def test_a_layer_computes_with_its_unpacked_weight(name: str, bias: bool) -> None:
    layer = QuantizedLinear(random_layer(bias=bias), COMPUTED[name])
    x = random_input(2, 3, 80).requires_grad_()
    exact = random_input(2, 3, 80).requires_grad_()
    found, expected = layer(x), functional.linear(exact, layer.weight, layer.bias)
    assert torch.equal(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    assert x.grad is not None
    assert exact.grad is not None
    assert torch.allclose(x.grad, exact.grad, rtol=1e-5)


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_decides_the_dtype(name: str, dtype: torch.dtype) -> None:
    layer = QuantizedLinear(random_layer(), COMPUTED[name])
    x = random_input(3, 80).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        found = layer(x)
    assert found.dtype == dtype
    assert relative(found.detach(), functional.linear(x.detach(), layer.weight, layer.bias)) < ERRORS[name]
    found.float().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


@pytest.mark.parametrize("name", COMPUTED)
def test_nothing_unpacked_is_kept_for_the_backward_pass(name: str) -> None:
    layer, kept = QuantizedLinear(random_layer(), COMPUTED[name]), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(random_input(3, 80).requires_grad_())
    own = {t.data_ptr() for t in (*layer.parameters(), *layer.buffers())}
    assert {t.data_ptr() for t in kept} <= own


@pytest.mark.skipif(not CAN_PRETEND, reason="needs torch's build for CPUs on Linux")
@pytest.mark.parametrize("name", WEIGHT_ONLY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_fewer_kernels_of_a_gpu_compute_the_same_bits(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weight, the output and the gradient, with values of all sizes, subnormal ones of float8 among them."""
    monkeypatch.setattr("modules.quantization.packing._has_kernels", lambda device: False)
    exact = random_layer(48, 128).to(dtype)
    exact.weight.data *= torch.logspace(-5, 1, 128)
    layer, x = QuantizedLinear(exact, COMPUTED[name]), random_input(3, 128, dtype=dtype).requires_grad_()
    expected = (layer.weight, found := layer(x), *torch.autograd.grad(found.float().square().sum(), x))
    with pretended_gpu():
        there, moved = layer.to("cuda"), x.detach().to("cuda").requires_grad_()
        results = (there.weight, found := there(moved), *torch.autograd.grad(found.float().square().sum(), moved))
        assert all(torch.equal(a.cpu(), b) for a, b in zip(results, expected, strict=True))


def test_nf4_has_the_layout_and_the_values_of_bitsandbytes() -> None:
    """Its kernels unpack the weights on a GPU."""
    import bitsandbytes.functional as kernels

    weight = random_input(64, 320)
    packed, scales = NF4_BLOCKS.pack(weight)
    theirs, state = kernels.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    assert torch.equal(packed, theirs.flatten())
    assert torch.equal(scales, state.absmax)
    for dtype in (torch.float32, torch.bfloat16):
        stored = PackedData(packed, scales, NF4_BLOCKS.table())
        own = NF4_BLOCKS.unpack(stored, (64, 320), dtype)
        assert torch.equal(own, unpack_by_bitsandbytes(stored, (64, 320), dtype))


@pytest.mark.skipif(not CAN_PRETEND, reason="needs torch's build for CPUs on Linux")
@pytest.mark.parametrize("error", [ImportError("no module"), OSError("libcudart.so.13"), RuntimeError("no kernel")])
def test_a_broken_bitsandbytes_is_not_used_and_reported_once(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> torch.Tensor:
        raise error

    monkeypatch.setattr("modules.quantization.packing.unpack_by_bitsandbytes", broken)
    _has_kernels.forget()  # type: ignore[attr-defined]
    layer = QuantizedLinear(random_layer(48, 128), COMPUTED["nfloat4"])
    expected = layer.weight
    with pretended_gpu():
        there = layer.to("cuda")
        assert all(torch.equal(there.weight.cpu(), expected) for _ in range(2))
    assert caplog.text.count("bitsandbytes is installed but does not work on cuda:0") == 1
    assert str(error) in caplog.text
    _has_kernels.forget()  # type: ignore[attr-defined]


def test_nf4_takes_the_nearest_value_of_each_weight() -> None:
    """Also at the middles between two values, at which the lower one is taken, and in blocks of several pieces."""
    values = NF4_BLOCKS.table()[:16, 1]
    middles = (values[1:] + values[:-1]) / 2
    edges = torch.cat([torch.nextafter(middles, torch.tensor(-2.0)), middles, torch.nextafter(middles, torch.ones(()))])
    block = functional.pad(torch.cat([edges, torch.tensor([1.0, -0.0, 1e-30])]), (0, 16))
    others = torch.rand(2200, 64, generator=torch.Generator().manual_seed(7)) * 2 - 1
    others[:, 0] = 1.0
    weight = torch.cat([block[None], others])
    packed, scales = NF4_BLOCKS.pack(weight)
    codes = torch.stack([packed >> 4, packed & 15], dim=1).view(-1, 64)
    assert torch.equal(codes.long(), (weight[..., None] > middles).sum(-1))
    assert torch.equal(scales, torch.ones(len(weight)))


def test_only_linear_layers_of_the_filter_are_quantized() -> None:
    def block() -> nn.ModuleDict:
        layers = {"to_q": random_layer(), "norm": nn.LayerNorm(8), "conv": nn.Conv2d(4, 4, 1), "ff": random_layer()}
        return nn.ModuleDict(layers)

    def part() -> nn.ModuleDict:
        return nn.ModuleDict({"time_embedding": block(), "mid_block": block(), "up_blocks": block()})

    def quantized(layers: LayerFilter) -> list[str]:
        module = part()
        names = quantize_layers(module, ChosenFormat(COMPUTED["int8"], layers, never=frozenset({"time_embedding"})))
        assert names == [n for n, layer in module.named_modules() if isinstance(layer, QuantizedLinear)]
        return names

    assert quantized(EVERYTHING) == ["mid_block.to_q", "mid_block.ff", "up_blocks.to_q", "up_blocks.ff"]
    assert quantized(LayerFilter(("to_q",))) == ["mid_block.to_q", "up_blocks.to_q"]
    assert quantized(LayerFilter((r"^up.*ff$",), is_regex=True)) == ["up_blocks.ff"]


# -- the low-rank product of a weight

RANK4 = Residual(4, "float32")


def outlying_layer(out: int = 48, inner: int = 80) -> nn.Linear:
    """A layer with a few large singular values, as trained ones have."""
    layer = random_layer(out, inner)
    generator = torch.Generator().manual_seed(3)
    thin = torch.randn(out, 3, generator=generator) @ torch.randn(3, inner, generator=generator)
    layer.weight.data += 3 * thin
    return layer


def with_residual(layer: nn.Linear, name: str, residual: Residual, cache: CacheStore | None = None) -> QuantizedLinear:
    return QuantizedLinear(layer, COMPUTED[name], pack_weight(layer.weight.detach(), COMPUTED[name], residual, cache))


@pytest.mark.parametrize("name", COMPUTED)
def test_a_residual_makes_the_weight_and_the_output_more_exact(name: str) -> None:
    layer, x = outlying_layer(), random_input(5, 80)
    plain, found = QuantizedLinear(layer, COMPUTED[name]), with_residual(layer, name, RANK4)
    assert relative(found.weight, layer.weight) < 0.5 * relative(plain.weight, layer.weight)
    assert relative(found(x), layer(x)) < (0.9 if name in W8A8 else 0.5) * relative(plain(x), layer(x))
    num_bytes = sum(p.nbytes for n, p in found.named_parameters() if n != "bias")
    assert num_bytes == ChosenFormat(COMPUTED[name], EVERYTHING, RANK4).stored_bytes("x", (48, 80))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_layer_with_a_residual_computes_with_its_whole_weight(dtype: str) -> None:
    layer = with_residual(outlying_layer(), "nfloat4", Residual(4, dtype))
    x = random_input(2, 3, 80).requires_grad_()
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        found = layer(x)
    assert relative(found, functional.linear(x, layer.weight, layer.bias)) < 1e-5
    gradient = random_input(*found.shape)
    found.backward(gradient)
    assert x.grad is not None
    assert relative(x.grad, gradient @ layer.weight) < 1e-5
    assert {t.data_ptr() for t in kept} <= {t.data_ptr() for t in (*layer.parameters(), *layer.buffers())}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert relative(layer(x), found) < 0.02


def test_the_product_of_a_large_weight_is_nearly_that_of_its_singular_values() -> None:
    weight = outlying_layer(300, 280).weight.detach()
    down, up = low_rank_product(weight, Residual(8, "float32"))
    rest = torch.linalg.svdvals(weight)[8:].norm()
    assert float((weight - up @ down).norm() / rest) < 1.01
    again = low_rank_product(weight, Residual(8, "float32"))
    assert torch.equal(down, again[0])
    assert torch.equal(up, again[1])


def test_a_rank_above_that_of_the_weight_is_that_of_the_weight() -> None:
    residual = Residual(64, "float16")
    layer = with_residual(random_layer(7, 9), "int8", residual)
    assert layer.down is not None
    assert layer.down.shape == (7, 9)
    assert residual.stored_bytes((7, 9)) == 7 * 16 * 2


def test_weights_with_a_residual_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, layer, computed = CacheStore(tmp_path), outlying_layer(), []
    monkeypatch.setattr(
        "modules.quantization.packing.low_rank_product",
        lambda *given: computed.append(given) or low_rank_product(*given),
    )
    first = with_residual(layer, "float8", RANK4, cache)
    second = with_residual(layer, "float8_w8a8", RANK4, cache)  # has the same weights
    assert len(computed) == 1
    assert torch.equal(first.weight, second.weight)
    for name, residual in (("int8", RANK4), ("float8", Residual(5, "float32")), ("float8", Residual(4, "float16"))):
        with_residual(layer, name, residual, cache)
    layer.weight.data[0, 0] += 1
    with_residual(layer, "float8", RANK4, cache)
    assert len(computed) == 5
    assert len(list(cache.entries())) == 5


def test_a_damaged_entry_is_computed_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache, layer = CacheStore(tmp_path), outlying_layer()
    expected = with_residual(layer, "nfloat4", RANK4, cache).weight
    [entry] = cache.entries()
    content = bytearray(entry.path.read_bytes())
    content[-1] ^= 1
    entry.path.write_bytes(content)
    assert torch.equal(with_residual(layer, "nfloat4", RANK4, cache).weight, expected)
    assert "computed again" in caplog.text
    cache.read(entry.key)
