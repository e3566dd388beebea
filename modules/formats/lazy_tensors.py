"""Lazy tensors, created on demand: a streamed conversion passes them on instead of tensors.

A mapping of names to lazy tensors gives all names, shapes and dtypes of a model with none of it in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch

from modules.system.devices import Device, move


@dataclass(frozen=True, eq=False)
class LazyTensor:
    """A tensor created on demand: `make()` returns it, with this shape and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], torch.Tensor]

    @property
    def num_bytes(self) -> int:
        """The size of its data."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size

    def then(self, shape: Sequence[int], change: Callable[[torch.Tensor], torch.Tensor]) -> LazyTensor:
        """Return the lazy tensor that results from applying `change` to this one."""
        return LazyTensor(tuple(shape), self.dtype, lambda: change(self.make()))


def lazy(tensor: torch.Tensor) -> LazyTensor:
    """Return an existing tensor as a lazy one."""
    return LazyTensor(tuple(tensor.shape), tensor.dtype, lambda: tensor)


def lazy_state(tensors: Mapping[str, torch.Tensor]) -> dict[str, LazyTensor]:
    """Return the tensors of a state dict as lazy tensors."""
    return {name: lazy(tensor) for name, tensor in tensors.items()}


def concatenate(parts: Sequence[LazyTensor]) -> LazyTensor:
    """Return tensors concatenated along their first axis, on the device of the first, in the dtype that holds them all.

    They may be on different devices: averaged weights on one, and those that are not trained on another.
    """
    shape = (sum(p.shape[0] for p in parts), *parts[0].shape[1:])
    dtype = reduce(torch.promote_types, (p.dtype for p in parts))

    def make() -> torch.Tensor:
        made = [p.make() for p in parts]
        device = Device(str(made[0].device))
        return torch.cat([move(tensor, device) for tensor in made])

    return LazyTensor(shape, dtype, make)
