"""Rank dropout and module dropout, as kohya's sd-scripts and LyCORIS define them.

Rank dropout (`rank_dropout`) leaves out ranks between the two matrices of a LoRA, drawn for each sample; an adapter
whose samples do not pass through ranks leaves out outputs of its product instead. The rest is divided by the
probability to be kept. Module dropout (`module_dropout`) leaves out the whole adapter of a layer in one pass, without
scaling.

Both draw from the global generator, which is seeded for each micro-batch, and which gradient checkpointing restores.
They draw on the device of the inputs, so that the host never waits.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_NAME = "module_dropout"


def drop_channels(x: torch.Tensor, probability: float, *, training: bool, channel_axis: int) -> torch.Tensor:
    """Return x without some of its channels, drawn for each sample (the first axis), the others scaled up."""
    if not training or not probability:
        return x
    shape = [1] * x.ndim
    shape[0], shape[channel_axis] = x.shape[0], x.shape[channel_axis]
    return x * functional.dropout(x.new_ones(shape), probability)


class ModuleDropout(nn.Module):
    """Whether the adapter of one layer takes part in a pass: drawn before each pass of the layer while training."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.is_kept: torch.Tensor | None = None
        """A single truth value; None outside of training, where every adapter takes part."""

    def draw(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        """Draw for the coming pass: the layer's forward pre-hook."""
        drawn = torch.rand((), device=inputs[0].device) if self.training else None
        self.is_kept = None if drawn is None else drawn >= self.probability

    def mask(self, change: torch.Tensor) -> torch.Tensor:
        """Return an adapter's change of a layer's output, or zeros of its shape if the adapter is left out."""
        return change if self.is_kept is None else change * self.is_kept.to(change.dtype)

    def scale(self, scale: torch.Tensor) -> torch.Tensor:
        """Return factors that an adapter multiplies with, or ones of their shape if the adapter is left out."""
        return scale if self.is_kept is None else torch.where(self.is_kept, scale, torch.ones_like(scale))


def attach_module_dropout(layer: nn.Module, probability: float) -> ModuleDropout | None:
    """Put module dropout on a layer, before the hooks of its adapter, and return it; None for a probability of 0."""
    if not probability:
        return None
    dropout = ModuleDropout(probability)
    layer.add_module(_NAME, dropout)
    layer.register_forward_pre_hook(dropout.draw)
    return dropout
