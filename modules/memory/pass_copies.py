"""Low-precision copies of a part's trained weights, made at once when a pass of the part begins.

A layer that multiplies in 16 bits rounds its float32 weights: one kernel for each weight, in each pass, and again where
a block is recomputed. Here all of them are rounded together, in a few kernels (`torch._foreach_copy_`).

The copies belong to the pass that made them. They are in the layers only while that pass computes, or while one of its
blocks is computed again (`modules/memory/checkpointing.py`). So none can be stale, whatever changes the weights between
passes: an optimizer, the average or a reference's weights in their place, a backup, another device. A layer that is
called outside of a pass has no copies and rounds its own weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import nn

_ALIGNED = 64
"""Each copy begins at a multiple of so many elements: kernels read 16 bytes at once from such places alone."""

Copies = tuple[torch.Tensor, ...]
_NAME = "pass_copies"


class PassCopies:
    """Hooks that give layers of a part copies of their weights in each pass, with and without gradients."""

    def __init__(
        self,
        part: nn.Module,
        copied: Mapping[nn.Module, tuple[nn.Module, ...]],
        dtype: torch.dtype,
        *,
        is_used: Callable[[], bool] = lambda: True,
    ) -> None:
        """Add the hooks. `copied` has the modules whose `weight` is copied, by layer; all layers have equally many.

        In memory, the copies of the first modules of all layers come first, then those of the second ones, and so on. A
        pass has no copies while `is_used()` is false.
        """
        self._layers = list(copied)
        self._weights = [module._parameters for modules in zip(*copied.values(), strict=True) for module in modules]
        self._dtype = dtype
        self._is_used = is_used
        _give(self._layers, [None] * len(self._layers))
        part.register_forward_pre_hook(self._begin)
        part.register_forward_hook(self._end, always_call=True)

    def _begin(self, _part: nn.Module, _inputs: object) -> None:
        if not self._is_used():
            return
        copies = round_weights([w for named in self._weights if (w := named["weight"]) is not None], self._dtype)
        number = len(self._layers)
        _give(self._layers, list(zip(*(copies[i : i + number] for i in range(0, len(copies), number)), strict=True)))

    def _end(self, _part: nn.Module, _inputs: object, _output: object) -> None:
        _give(self._layers, [None] * len(self._layers))


def copies_of(layer: nn.Module) -> Copies | None:
    """Return the copies that a layer has in the present pass; None if there are none."""
    copies: Copies | None = layer.__dict__.get(_NAME)
    return copies


def layers_with_copies(module: nn.Module) -> list[nn.Module]:
    """Return the layers of a module that get copies."""
    return [layer for layer in module.modules() if _NAME in layer.__dict__]


@contextmanager
def given_copies(layers: Sequence[nn.Module], copies: Sequence[Copies | None]) -> Iterator[None]:
    """Give layers these copies within this context; afterwards they have their former ones again."""
    before = [copies_of(layer) for layer in layers]
    try:
        _give(layers, copies)
        yield
    finally:
        _give(layers, before)


def _give(layers: Sequence[nn.Module], copies: Sequence[Copies | None]) -> None:
    for layer, of_layer in zip(layers, copies, strict=True):
        layer.__dict__[_NAME] = of_layer  # a module's own `__setattr__` takes ten times as long


@torch.no_grad()
def round_weights(weights: Sequence[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """Return copies of weights in a dtype, with their strides: views of one new tensor.

    The weights are of one device, and dense (without gaps in memory).
    """
    sizes = [-(-weight.numel() // _ALIGNED) * _ALIGNED for weight in weights]
    flat = torch.empty(sum(sizes), dtype=dtype, device=weights[0].device)
    places = zip(weights, accumulate(sizes, initial=0), strict=False)
    # Half the host's time of slices and views of them.
    copies = [flat.as_strided(weight.shape, weight.stride(), place) for weight, place in places]
    torch._foreach_copy_(copies, list(weights))
    return copies
