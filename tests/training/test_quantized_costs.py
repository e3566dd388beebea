"""What the records of formats state of the speed of a layer is what is counted on tensors of a GPU without values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.kernels.counter import KernelCounter
from benchmarks.kernels.fake_gpu import GPU, fake_gpu
from modules.quantization import packing, products
from modules.quantization.linear import QuantizedLinear
from modules.quantization.registry import COMPUTED, PLAIN_COST, LayerCost
from tests.builders.pretended_gpu import CAN_PRETEND

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


@pytest.mark.parametrize("name", ["", *COMPUTED])
def test_the_cost_of_a_layer_is_the_one_of_its_record(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_has_kernels", lambda device: False)
    for function in (products._has_product, products._takes_row_scales):
        function.forget()  # type: ignore[attr-defined]
    with fake_gpu():
        layer: nn.Module = nn.Linear(SIZE, SIZE, dtype=torch.bfloat16, device=GPU.torch).requires_grad_(False)
        assert isinstance(layer, nn.Linear)
        if name:
            layer = QuantizedLinear(layer, COMPUTED[name])
        found = counted(layer)
    for function in (products._has_product, products._takes_row_scales):
        function.forget()  # type: ignore[attr-defined]
    assert found == (COMPUTED[name].cost if name else PLAIN_COST)
