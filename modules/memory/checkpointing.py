"""Gradient checkpointing: the one way any part of any model is run with less memory.

Always non-reentrant. The reentrant kind loses gradients where no input requires one (a LoRA on a frozen base), dies
where nothing inside requires one (a part that was frozen in mid-run: "none of output has requires_grad=True"), and
cannot be nested in a truncated denoising chain. The non-reentrant kind is exact in all of these (Chen et al. 2016 for
the idea; torch.utils.checkpoint for the machinery).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from modules.memory.activations import offloaded_activations
from modules.memory.offload import OffloadedForward, offload_layers
from modules.memory.transfers import Transfers
from modules.system.devices import Device

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
    offload_fraction: float = 0.0,
    resident: Collection[nn.Parameter] = (),
    entry: str = "forward",
) -> Forward:
    """Make a module compute its forward pass with checkpointing, and return the callable that runs it.

    `mode` is "off", "whole" (only the inputs of the module are kept), or "block" (the inputs of every sub-module of
    one of `block_types`). With `offload_activations` what is kept between forward and backward waits on
    `temp_device` and comes back to `train_device` when the backward pass wants it. `offload_fraction` of the weights
    of the blocks, but none that are `resident`, wait on `temp_device` and are copied to `train_device` while their
    block is computed (`modules/memory/offload.py`). `entry` is the method that runs the module, where that is not its
    forward pass, as the `decode` of a VAE. Calling it again on the same module replaces what was set up
    before; a placement made afterwards brings the weights where they belong. Without gradients (`no_grad`) nothing is
    computed twice.

    The gradients are those of the plain forward, bit for bit; offloaded ones too, as a copy loses nothing.
    """
    for wrapped, name in _wrapped_in(module, entry):
        delattr(wrapped, name)
    blocks = [m for m in module.modules() if isinstance(m, tuple(block_types))]
    transfers = Transfers(train_device, temp_device)
    layers = offload_layers(blocks, fraction=offload_fraction, resident=resident, transfers=transfers)
    targets = {"off": [], "whole": [(module, entry)], "block": [(block, "forward") for block in blocks]}[mode]
    for target, name in targets:
        setattr(target, name, _CheckpointedForward(getattr(target, name)))
    enter: Forward = module.__call__ if entry == "forward" else getattr(module, entry)
    if layers is None and not offload_activations:
        return enter

    def run(*args: Any, **kwargs: Any) -> Any:
        if layers is not None:
            layers.begin()
        keeps = offload_activations and torch.is_grad_enabled()
        with offloaded_activations(module, transfers) if keeps else nullcontext():
            return enter(*args, **kwargs)

    return run


def offloaded_weights(module: nn.Module) -> list[nn.Parameter]:
    """Return the weights of a module that wait on the offload device also while the module is to be run."""
    forwards = (_offloaded(m.__dict__.get("forward")) for m in module.modules())
    return [weight for forward in forwards if forward is not None for weight in forward.weights]


class _CheckpointedForward:
    """A forward pass that is computed again in the backward pass instead of being kept."""

    def __init__(self, plain: Forward) -> None:
        self.plain = plain

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.plain(*args, **kwargs)
        if any(isinstance(value, torch.Tensor) for value in args):
            return checkpoint(self.plain, *args, use_reentrant=False, **kwargs)
        # Torch looks for the devices whose random state a recomputation needs among the positional arguments alone: an
        # encoder that is given all by name would draw another dropout on a GPU.
        return checkpoint(self._named, kwargs, *args, use_reentrant=False)

    def _named(self, kwargs: dict[str, Any], *args: Any) -> Any:
        return self.plain(*args, **kwargs)


def _wrapped_in(module: nn.Module, entry: str) -> list[tuple[nn.Module, str]]:
    places = [(module, entry), *((m, "forward") for m in module.modules())]
    is_ours = _CheckpointedForward | OffloadedForward
    return [place for place in dict.fromkeys(places) if isinstance(place[0].__dict__.get(place[1]), is_ours)]


def _offloaded(forward: object) -> OffloadedForward | None:
    if isinstance(forward, _CheckpointedForward):
        forward = forward.plain
    return forward if isinstance(forward, OffloadedForward) else None
