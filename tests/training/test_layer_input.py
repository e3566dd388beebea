"""Adapters leave a layer's input as it is where autocast casts it anyway: nothing changes, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from modules.adapters import delta_adapter
from modules.adapters.protocol import kind_of
from modules.adapters.registry import ADAPTERS
from tests.builders.matrix import matrix

LAYERS = ["query", "key", "value", "conv"]
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("lora", {"rank": 2}),
    "LoRA with dropout": ("lora", {"rank": 2, "dropout": 0.5}),
    "LoRA with rank dropout": ("lora", {"rank": 2, "rank_dropout": 0.5}),
    "LoRA in bfloat16": ("lora", {"rank": 2, "dtype": "bfloat16"}),
    "PiSSA": ("lora", {"rank": 2, "init": "pissa"}),
    "DoRA": ("lora", {"rank": 2, "decompose": True}),
    "LoHa": ("loha", {"rank": 2}),
    "LoHa with dropout": ("loha", {"rank": 2, "dropout": 0.5}),
    "LoKr": ("lokr", {"rank": 2}),
    "LoKr as a whole": ("lokr", {"rank": 2, "vec_trick": False}),
    "OFT": ("oft", {"block_size": 4}),
    "OFT of inputs": ("oft", {"block_size": 4, "rotates": "inputs"}),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Block(nn.Module):
    """Three layers with the same input, as in attention, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.conv = nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        mixed = self.query(x_BLD) * self.key(x_BLD) + self.value(x_BLD)
        return self.conv(mixed.mT.reshape(2, 16, 3, 3))


def trained(name: str, dtype: torch.dtype, autocast: torch.dtype) -> dict[str, torch.Tensor]:
    """The output of a block in a dtype with an adapter, and all its gradients."""
    torch.manual_seed(0)
    block = Block().to(dtype).train()
    spec = ADAPTERS[SETTINGS[name][0]]
    adapter = kind_of(spec).attach("unet", block, LAYERS, spec.settings(**SETTINGS[name][1]), seed=1)
    for parameter in adapter.parameters().values():
        with torch.no_grad():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    x_BLD = torch.randn(2, 9, 16).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=autocast):
        output = block(x_BLD)
    output.float().square().mean().backward()
    gradients = {n: p.grad for n, p in adapter.parameters().items() if p.grad is not None}
    assert len(gradients) == len(adapter.parameters())
    assert x_BLD.grad is not None
    return {"output": output.detach(), "input": x_BLD.grad, **gradients}


@pytest.mark.parametrize(
    ("name", "dtype", "autocast"), matrix(list(SETTINGS), list(DTYPES), ["bfloat16", "float16"], most_daily=36)
)
def test_without_the_cast_every_bit_is_the_same(
    name: str, dtype: str, autocast: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = trained(name, DTYPES[dtype], DTYPES[autocast])
    monkeypatch.setattr(delta_adapter, "_is_autocast", lambda x: False)
    plain = trained(name, DTYPES[dtype], DTYPES[autocast])
    assert [n for n in plain if not torch.equal(ours[n], plain[n])] == []


def test_layers_with_the_same_input_share_what_autograd_keeps() -> None:
    spec = ADAPTERS["lora"]
    block = Block().to(torch.bfloat16)
    kind_of(spec).attach("unet", block, LAYERS[:3], spec.settings(rank=2), seed=1)
    x_BLD = torch.randn(2, 9, 16, dtype=torch.bfloat16, requires_grad=True)
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() == x_BLD.numel():
            kept.append(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t), torch.autocast("cpu", dtype=torch.bfloat16):
        for layer in (block.query, block.key, block.value):
            layer(x_BLD)
    assert kept.count(x_BLD.untyped_storage().data_ptr()) == len(kept) == 3
