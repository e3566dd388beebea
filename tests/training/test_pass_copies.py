"""A LoRA's factors are rounded once when a pass begins, with the same bits, and no pass sees an older copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from modules.adapters.lora import Lora
from modules.adapters.lora_layers import LORA_KIND, LoraAdapter
from modules.memory.checkpointing import create_checkpointed_forward
from modules.memory.compiled_blocks import Compilation
from modules.memory.frozen_copy import FrozenCopy
from modules.memory.pass_copies import copies_of, layers_with_copies
from modules.system.devices import CPU, Device

BF16 = torch.bfloat16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = nn.Linear(6, 6), nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.linear(x).tanh()) + x


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def adapted(mode: Any = "off", compilation: Compilation | None = None, **settings: Any) -> tuple[LoraAdapter, Any]:
    """A part in bfloat16 with a float32 LoRA on each layer, and the callable that runs it."""
    torch.manual_seed(0)
    part = Part().to(BF16).train()
    names = [n for n, m in part.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    adapter = LORA_KIND.attach("unet", part, names, Lora.model_validate({"rank": 3, **settings}), seed=1)
    for weight in adapter.parameters().values():
        nn.init.normal_(weight, std=0.4)
    adapter.compute_in_input_dtype(BF16)
    forward = create_checkpointed_forward(
        part,
        train_device=CPU,
        temp_device=Device("cpu:1"),
        mode=mode,
        block_types=(Block,),
        offload_activations=mode == "block",
        compilation=compilation,
    )
    return adapter, forward


def found(adapter: LoraAdapter, forward: Any, between: Callable[[], None] = lambda: None) -> list[torch.Tensor]:
    """The output and the gradients of a pass; `between` is called between forward and backward."""
    torch.manual_seed(2)
    adapter.module.zero_grad()
    output = forward(torch.randn(2, 2, 6, 6).to(BF16).requires_grad_())
    between()
    output.float().square().sum().backward()
    return [output.detach(), *(p.grad.clone() for p in adapter.parameters().values() if p.grad is not None)]


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


@pytest.mark.parametrize("mode", ["off", "block", "whole", "selective"])
@pytest.mark.parametrize("settings", [{}, {"dropout": 0.5, "alpha": 2.0}])
def test_passes_with_copies_have_the_same_bits(mode: Any, settings: dict[str, Any]) -> None:
    adapter, forward = adapted(mode, **settings)
    seen = watch_copies(adapter)
    with_copies = found(adapter, forward)
    assert all(seen)
    assert len(seen) == (6 if mode == "off" else 12)
    assert len(with_copies) == 1 + 12
    seen.clear()
    assert equal(with_copies, found(adapter, adapter.module.forward))  # past the hooks that make copies
    assert not any(seen)


def watch_copies(adapter: LoraAdapter) -> list[bool]:
    """Note for each use of a layer whether it has copies."""
    seen: list[bool] = []
    for _, layer in adapter.layers():
        layer.register_forward_pre_hook(lambda layer, _: seen.append(copies_of(layer) is not None))
    return seen


CHANGES: dict[str, Callable[[nn.Parameter], object]] = {
    "in place": lambda p: p.detach().add_(1.0),
    "past autograd's version": lambda p: p.data.add_(1.0),
    "other memory": lambda p: setattr(p, "data", p.data + 1.0),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("mode", ["off", "block"])
def test_a_pass_after_a_change_sees_the_new_weights(change: str, mode: Any) -> None:
    adapter, forward = adapted(mode)
    before = found(adapter, forward)
    for weight in adapter.parameters().values():
        CHANGES[change](weight)
    after = found(adapter, forward)
    assert not torch.equal(after[0], before[0])
    assert equal(after, found(adapter, adapter.module.forward))
    with torch.no_grad():
        layer, x = adapter.module.blocks[0].linear, torch.ones(1, 6, dtype=BF16)  # type: ignore[index, union-attr]
        once = layer(x)
        CHANGES[change](layer.lora_B["default"].weight)
        assert not torch.equal(layer(x), once)  # outside of a pass


@pytest.mark.parametrize("mode", ["block", "whole"])
def test_a_recomputed_block_has_the_copies_of_its_own_pass(mode: Any) -> None:
    """A reference in between predicts with other weights, and one without the adapter."""
    adapter, forward = adapted(mode)
    plain = found(adapter, forward)
    other = FrozenCopy(adapter.parameters().values())
    for copy in other.copies:
        copy.data.mul_(-2.0)

    def predict_with_others() -> None:
        x = torch.ones(1, 2, 6, 6, dtype=BF16)
        with other.swapped_in():
            forward(x)
        with adapter.disabled():
            forward(x)

    assert equal(found(adapter, forward, predict_with_others), plain)


def test_nothing_is_left_after_a_pass() -> None:
    adapter, forward = adapted("block")
    seen = watch_copies(adapter)
    found(adapter, forward)
    with pytest.raises(RuntimeError):
        forward(torch.ones(1, 2, 6, 5, dtype=BF16))
    assert len(layers_with_copies(adapter.module)) == 6
    assert not any(copies_of(layer) for _, layer in adapter.layers())
    seen.clear()
    with adapter.disabled():
        forward(torch.ones(1, 2, 6, 6, dtype=BF16))
    assert not any(seen)


def test_compiled_blocks_share_their_code_and_see_the_new_weights() -> None:
    compiling = Compilation(iter(range(1000)).__next__, backend="aot_eager")
    adapter, forward = adapted("off", compiling)
    plain_adapter, plain = adapted()
    try:
        for _ in range(2):
            assert equal(found(adapter, forward), found(plain_adapter, plain))
            for weight in (*adapter.parameters().values(), *plain_adapter.parameters().values()):
                weight.data.add_(0.5)
        assert not compiling.failure
        assert compiling.counts.num_blocks == 3
        assert compiling.counts.num_graphs == 1
    finally:
        compiling.close()
