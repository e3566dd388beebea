"""Parts whose weights leave the memory, and are read again from their files when a phase needs them.

The parameters stay the same objects, with their shapes and dtypes, so that hooks and wrappers of the part remain. Their
values are NaN until they are read again: code that used them anyway would not go unnoticed.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from modules.system.devices import Device

DROPPED = Device("dropped")
"""The place of a part whose weights are not in the memory."""


def drop_weights(module: nn.Module, device: Device) -> None:
    """Free the memory of a module's weights, in place; what is left of them is on a device."""
    for weight in module.parameters():
        value = math.nan if weight.is_floating_point() else 0
        weight.data = torch.full((), value, dtype=weight.dtype, device=device.torch).expand(weight.shape)


def refill_weights(module: nn.Module, other: nn.Module) -> None:
    """Give a module the weights of another one with the same layers, in place; both then share them.

    Raises ValueError where their weights have different names, shapes or dtypes.
    """
    weights, theirs = dict(module.named_parameters()), dict(other.named_parameters())
    facts, other_facts = ({n: (w.shape, w.dtype) for n, w in ws.items()} for ws in (weights, theirs))
    if facts != other_facts:
        different = sorted(n for n in facts.keys() | other_facts.keys() if facts.get(n) != other_facts.get(n))
        raise ValueError(f"the weights that were read again differ from those before, first {different[0]}")
    for name, weight in weights.items():
        weight.data = theirs[name].data
