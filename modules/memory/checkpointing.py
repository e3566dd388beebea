"""Gradient checkpointing: the one way any part of any model is run with less memory.

Always non-reentrant. The reentrant kind loses gradients where no input requires one (a LoRA on a frozen base), dies
where nothing inside requires one (a part that was frozen in mid-run: "none of output has requires_grad=True"), and
cannot be nested in a truncated denoising chain. The non-reentrant kind is exact in all of these (Chen et al. 2016 for
the idea; torch.utils.checkpoint for the machinery).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from modules.system.devices import Device, move

CheckpointMode = Literal["off", "block", "whole"]
Forward = Callable[..., Any]


def create_checkpointed_forward(
    module: nn.Module,
    *,
    train_device: Device,
    temp_device: Device,
    mode: CheckpointMode = "whole",
    block_types: Sequence[type[nn.Module]] = (),
    offload_activations: bool = False,
) -> Forward:
    """Make a module compute its forward pass with checkpointing, and return the callable that runs it.

    `mode` is "off", "whole" (only the inputs of the module are kept), or "block" (the inputs of every sub-module of
    one of `block_types`). With `offload_activations` what is kept between forward and backward waits on
    `temp_device` and comes back to `train_device` when the backward pass wants it. Calling it again on the same
    module replaces what was set up before. Without gradients (`no_grad`) it is the plain forward.

    The gradients are those of the plain forward, bit for bit; offloaded ones too, as a copy loses nothing.
    """
    for wrapped in _wrapped_in(module):
        del wrapped.forward
    targets = {
        "off": [],
        "whole": [module],
        "block": [m for m in module.modules() if isinstance(m, tuple(block_types))],
    }[mode]
    for target in targets:
        target.forward = _CheckpointedForward(target.forward)
    if not offload_activations:
        return module.__call__

    def run(*args: Any, **kwargs: Any) -> Any:
        with _offloaded(module, train_device, temp_device) if torch.is_grad_enabled() else nullcontext():
            return module(*args, **kwargs)

    return run


class _CheckpointedForward:
    """A forward pass that is computed again in the backward pass instead of being kept."""

    def __init__(self, plain: Forward) -> None:
        self.plain = plain

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.plain(*args, **kwargs)
        return checkpoint(self.plain, *args, use_reentrant=False, **kwargs)


def _wrapped_in(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.modules() if isinstance(m.__dict__.get("forward"), _CheckpointedForward)]


def _offloaded(module: nn.Module, train_device: Device, temp_device: Device) -> AbstractContextManager[object]:
    """Keep what autograd saves on the resting device. Weights, and views of them, stay: they are no copies."""
    weights = {p.untyped_storage().data_ptr() for p in module.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor]:
        if tensor.dim() == 0 or tensor.untyped_storage().data_ptr() in weights:
            return tensor
        return (move(tensor.detach(), temp_device),)

    def unpack(packed: torch.Tensor | tuple[torch.Tensor]) -> torch.Tensor:
        return packed if isinstance(packed, torch.Tensor) else move(packed[0], train_device)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
