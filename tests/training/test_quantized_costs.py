"""What the records of formats state of the speed of a layer is what is counted on tensors of a GPU without values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks.kernels.counter import KernelCounter
from benchmarks.kernels.fake_gpu import GPU, fake_gpu
from modules.estimate.step_time import _CARD_MEMORY as CARD_MEMORY
from modules.estimate.step_time import StepFacts, step_time
from modules.formats.gguf_header import BlockType
from modules.quantization import packing, products
from modules.quantization.linear import QuantizedLinear
from modules.quantization.packing import PackedWeight
from modules.quantization.registry import COMPUTED, FORMATS, PLAIN_COST, LayerCost
from tests.builders.pretended_gpu import CAN_PRETEND
from trainer.preflight import search

pytestmark = pytest.mark.skipif(not CAN_PRETEND, reason="needs torch's build for CPUs on Linux")
TOKENS, SIZE = 1024, 1280


def counted(layer: nn.Module) -> LayerCost:
    with KernelCounter() as counter:
        for _ in range(2):  # what is found out once is no cost of a step
            counter.clear()
            x = torch.empty(TOKENS, SIZE, dtype=torch.bfloat16, device=GPU.torch, requires_grad=True)
            found = layer(x)
            found.backward(torch.empty_like(found))
        counts = counter.counts()
    return LayerCost(counts.kernels, round(counts.traffic_bytes / 1e6))


def forget() -> None:
    for function in (products._has_product, products._takes_row_scales):
        function.forget()  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _forget_gpus() -> Iterator[None]:
    """Forget the answers about the GPUs of other tests before a test, and about its own GPU after it."""
    forget()
    yield
    forget()


def bytes_of_unpacking_in_the_model_of_a_step(dtype: str) -> float:
    """Return what the estimated time of a LoRA's step of this layer grows by, as bytes that a card moves meanwhile."""
    plain = StepFacts(
        num_weights=SIZE * SIZE, weight_bytes=1.0, pixels=1 << 20, batch_size=4, accumulation_steps=1,
        num_trained=0, num_encoder_weights=0, trains_weights=False, checkpointing="off", num_operations=0,
    )  # fmt: skip
    packed = replace(plain, unpacking_bytes=search._unpacking_bytes(dtype))
    return (step_time(packed) - step_time(plain)) * CARD_MEMORY


@pytest.mark.parametrize("name", ["", *COMPUTED])
def test_the_cost_of_a_layer_is_the_one_of_its_record(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_has_kernels", lambda device: False)
    with fake_gpu():
        layer: nn.Module = nn.Linear(SIZE, SIZE, dtype=torch.bfloat16, device=GPU.torch).requires_grad_(False)
        assert isinstance(layer, nn.Linear)
        if name:
            layer = QuantizedLinear(layer, COMPUTED[name])
        found = counted(layer)
    assert found == (COMPUTED[name].cost if name else PLAIN_COST)
    assert bytes_of_unpacking_in_the_model_of_a_step(name or "bfloat16") == pytest.approx(found.moved_mb * 1e6)


@pytest.mark.parametrize(
    ("kind", "cost"),
    [
        (BlockType("Q8_0", 32, 34), LayerCost(kernels=8, moved_mb=37)),
        (BlockType("Q4_0", 32, 18), LayerCost(kernels=16, moved_mb=60)),
        (BlockType("Q4_K", 256, 144), LayerCost(kernels=46, moved_mb=82)),
    ],
)
def test_the_cost_of_blocks_of_a_gguf_file_is_the_documented_one(kind: BlockType, cost: LayerCost) -> None:
    with fake_gpu():
        layer = nn.Linear(SIZE, SIZE, dtype=torch.bfloat16, device=GPU.torch).requires_grad_(False)
        num_bytes = SIZE * SIZE // kind.block * kind.num_bytes
        packed = torch.empty(num_bytes, dtype=torch.uint8, device=GPU.torch)
        weight = PackedWeight(packing.GgufBlocks(kind), packed, torch.empty(0, device=GPU.torch))
        assert counted(QuantizedLinear(layer, FORMATS["gguf"], weight)) == cost


@pytest.mark.parametrize("tokens", [1, 15, 17, 77, 257, 333])
@pytest.mark.parametrize(("name", "product"), [("int8_w8a8", "_int_mm"), ("float8_w8a8", "_scaled_mm")])
def test_the_product_in_8_bits_takes_any_number_of_tokens(name: str, product: str, tokens: int) -> None:
    """By torch's own rules for a GPU, which ask for multiples of 16 of the sides of the weight alone."""
    with fake_gpu():
        layer = QuantizedLinear(nn.Linear(80, 48, dtype=torch.bfloat16, device=GPU.torch), COMPUTED[name])
        products._takes_row_scales(layer.packed.device)  # which tries one
        x = torch.empty(tokens, 80, dtype=torch.bfloat16, device=GPU.torch, requires_grad=True)
        with KernelCounter() as counter:
            found = layer(x)
            found.backward(torch.empty_like(found))
        assert found.shape == (tokens, 48)
        counts = counter.counts()
        assert (counts.products, counts.by_operation[product][0]) == (2, 2)
        odd, one = (
            torch.empty(tokens, 72, dtype=torch.float8_e4m3fn, device=GPU.torch),
            x.new_ones((), dtype=torch.float32),
        )
        with pytest.raises(RuntimeError, match="divisible by 16"):
            torch._scaled_mm(odd, odd.new_empty(48, 72).T, one, one)
