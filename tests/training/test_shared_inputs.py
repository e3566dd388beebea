"""q, k and v of an attention with a LoRA are computed together, with the results of each alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers.models.attention_processor import Attention
from torch import nn

from modules.adapters.lora import Lora
from modules.adapters.lora_forward import Siblings, siblings_of
from modules.adapters.lora_layers import LORA_KIND, LoraAdapter
from modules.memory.checkpointing import create_checkpointed_forward
from modules.system.devices import CPU

F32 = torch.float32


class Part(nn.Module):
    """A self-attention, and a cross-attention to states of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.own = Attention(query_dim=64, heads=2, dim_head=32)
        self.cross = Attention(query_dim=64, cross_attention_dim=64, heads=2, dim_head=32)

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        return self.cross(self.own(x), encoder_hidden_states=text)


def adapted(rank: int = 4, alpha: float = 2.0) -> LoraAdapter:
    """A float32 part whose LoRA is in bfloat16: products are exact enough to compare."""
    torch.manual_seed(0)
    part = Part().train()
    names = [n for n, m in part.named_modules() if isinstance(m, nn.Linear)]
    chosen = Lora.model_validate({"rank": rank, "alpha": alpha, "dtype": "bfloat16"})
    adapter = LORA_KIND.attach("unet", part, names, chosen, seed=1)
    for weight in adapter.parameters().values():
        nn.init.normal_(weight, std=0.3)
    adapter.compute_in_input_dtype(F32)
    return adapter


def found(adapter: LoraAdapter, *, mode: Any = "off", needs_grad: bool = True) -> list[torch.Tensor | None]:
    """The output, and the gradients of x and of all factors."""
    torch.manual_seed(2)
    adapter.module.zero_grad()
    x, text = torch.randn(2, 5, 64).requires_grad_(needs_grad), torch.randn(2, 3, 64)
    forward = create_checkpointed_forward(
        adapter.module, train_device=CPU, temp_device=CPU, mode=mode, block_types=(Attention,)
    )
    output = forward(x, text)
    output.square().sum().backward()
    return [output.detach(), x.grad, *(p.grad for p in adapter.parameters().values())]


def alone(adapter: LoraAdapter, **options: Any) -> list[torch.Tensor | None]:
    kept = {layer: layer.__dict__.pop("siblings") for _, layer in adapter.layers() if siblings_of(layer) is not None}
    try:
        return found(adapter, **options)
    finally:
        for layer, siblings in kept.items():
            layer.__dict__["siblings"] = siblings


def groups(adapter: LoraAdapter) -> list[Siblings]:
    return list(dict.fromkeys(s for _, layer in adapter.layers() if (s := siblings_of(layer)) is not None))


def assert_close(ours: list[torch.Tensor | None], others: list[torch.Tensor | None]) -> None:
    assert len(ours) == len(others) == 2 + 2 * 8
    for a, b in zip(ours, others, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=0.02 if a.dtype != F32 else 1e-4, atol=1e-4)


@pytest.mark.parametrize("rank", [4, 3], ids=["one after the other in memory", "with gaps"])
@pytest.mark.parametrize("needs_grad", [True, False])
def test_together_they_compute_what_each_does_alone(rank: int, needs_grad: bool) -> None:
    adapter = adapted(rank)
    ours = found(adapter, needs_grad=needs_grad)
    assert [len(group.layers) for group in groups(adapter)] == [3, 2]
    assert not any(group.is_waiting for group in groups(adapter))
    assert_close(ours, alone(adapter, needs_grad=needs_grad))
    again = found(adapter, mode="block", needs_grad=needs_grad)
    assert all(a is b or torch.equal(a, b) for a, b in zip(ours, again, strict=True) if a is not None)


def test_frozen_factors_and_other_scales_are_as_alone() -> None:
    adapter = adapted()
    layers = dict(adapter.layers())
    layers["own.to_k"].scaling["default"] = 1.5
    layers["own.to_q"].lora_A["default"].weight.requires_grad_(False)
    assert_close(found(adapter), alone(adapter))


def test_an_output_that_nothing_uses_gets_no_gradient() -> None:
    adapter = adapted()
    attention: Any = adapter.module.own
    attention.processor = lambda attn, states, **_: attn.to_q(states) * attn.to_k(states)
    ours = found(adapter)
    assert_close(ours, alone(adapter))
    unused = adapter.parameters()["unet.own.to_v.lora_A.default.weight"]
    assert unused.grad is None


@pytest.mark.parametrize("change", ["another tensor", "changed in place", "left over"])
def test_another_input_is_never_taken_for_the_first(change: str) -> None:
    adapter = adapted()
    attention: Any = adapter.module.own
    first = {"is": True}

    def processor(attn: Any, states: torch.Tensor, **_: Any) -> torch.Tensor:
        query = attn.to_q(states)
        if change == "left over" and first.pop("is", False):
            return query  # k and v are computed, and not taken
        if change == "another tensor":
            states = states + 1.0
        elif change == "changed in place":
            states.add_(1.0)
        return query + attn.to_k(states) + attn.to_v(states)

    attention.processor = processor
    x, text = torch.randn(1, 5, 64), torch.randn(1, 3, 64)
    with torch.no_grad():
        if change == "left over":
            adapter.module(x.clone(), text)
        for weight in adapter.parameters().values():
            weight.data.add_(0.1)
        ours = adapter.module(x.clone(), text)
        first.clear()
        for _, layer in adapter.layers():
            layer.__dict__.pop("siblings", None)
        torch.testing.assert_close(ours, adapter.module(x.clone(), text), rtol=1e-4, atol=1e-4)
