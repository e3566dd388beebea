"""The conditioning of families with several text encoders: the states of each of them, apart from each other.

So a cache entry has no zeros between and behind them, and each encoder's states can be replaced by those of the empty
prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from modules.families.parts.conditioning import replace_rows
from modules.system.devices import Device, move

_POOLED = "_pooled"
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class EncoderStates:
    """The states (B, ...) of B prompts, and the pooled states (B, E), by text encoder; `encoders` are all in order.

    The denoiser attends to the padding, and its states depend on the prompt, so a cache entry has them, too.
    """

    encoders: ClassVar[tuple[str, ...]]

    states: Tensors
    pooled: Tensors

    def __len__(self) -> int:
        return int(next(iter(self.states.values())).shape[0])

    def to(self, device: Device, dtype: torch.dtype | None = None) -> Self:
        """Move it to a device, and to a dtype where one is given."""
        states, pooled = ({n: move(t, device, dtype=dtype) for n, t in of.items()} for of in (self.states, self.pooled))
        return type(self)(states, pooled)

    def select(self, indices: Sequence[int]) -> Self:
        """Return the conditioning of some of the prompts, in that order."""
        rows = list(indices)
        return type(self)({n: t[rows] for n, t in self.states.items()}, {n: t[rows] for n, t in self.pooled.items()})

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name, for a cache entry."""
        return {**self.states, **{f"{name}{_POOLED}": pooled_BE for name, pooled_BE in self.pooled.items()}}

    def with_empty_prompts(self, empty_for: Sequence[Collection[int]], empty: Self) -> Self:
        """Return it with the empty prompt's states for the encoders of each prompt, by their index."""

        def replace_padding(of: Tensors, of_empty: Tensors) -> dict[str, torch.Tensor]:
            return {
                name: replace_rows(rows, of_empty[name], [self.encoders.index(name) in e for e in empty_for])
                for name, rows in of.items()
            }

        return type(self)(replace_padding(self.states, empty.states), replace_padding(self.pooled, empty.pooled))

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> Self:
        """Return the conditioning from its `tensors`."""
        pooled = {name: tensors[key] for name in cls.encoders if (key := f"{name}{_POOLED}") in tensors}
        return cls({name: tensors[name] for name in cls.encoders if name in tensors}, pooled)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join conditionings into one."""
        first = parts[0]
        states = {name: torch.cat([p.states[name] for p in parts]) for name in first.states}
        return cls(states, {name: torch.cat([p.pooled[name] for p in parts]) for name in first.pooled})
