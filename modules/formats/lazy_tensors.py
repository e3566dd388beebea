"""Tensors that are made when they are asked for: what a streamed conversion passes on instead of tensors.

A mapping of names to these tells all names, shapes and dtypes of a model while none of it is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class LazyTensor:
    """A tensor to be: `make()` gives it, with this shape and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], torch.Tensor]

    @property
    def num_bytes(self) -> int:
        """The size of its values."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size

    def then(self, shape: Sequence[int], change: Callable[[torch.Tensor], torch.Tensor]) -> LazyTensor:
        """Return the tensor that `change` makes of this one."""
        return LazyTensor(tuple(shape), self.dtype, lambda: change(self.make()))


def lazy(tensor: torch.Tensor) -> LazyTensor:
    """Return a tensor that is already there as one to be."""
    return LazyTensor(tuple(tensor.shape), tensor.dtype, lambda: tensor)


def lazy_state(tensors: Mapping[str, torch.Tensor]) -> dict[str, LazyTensor]:
    """Return the tensors of a state dict as tensors to be."""
    return {name: lazy(tensor) for name, tensor in tensors.items()}


def joined(parts: Sequence[LazyTensor]) -> LazyTensor:
    """Return tensors put one below the other along their first axis."""
    first = parts[0]
    shape = (sum(p.shape[0] for p in parts), *first.shape[1:])
    return LazyTensor(shape, first.dtype, lambda: torch.cat([p.make() for p in parts]))
