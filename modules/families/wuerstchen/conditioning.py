"""The conditioning of Wuerstchen: states for the prior, and token ids for the decoder's own CLIP."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from modules.families.parts.conditioning import replaced_rows
from modules.system.devices import Device, move


@dataclass(frozen=True, eq=False)
class StatesAndTokens:
    """CLIP's states (B, 77, D) of B prompts, padding included, and the decoder's ids (B, 77) of their tokens, int32."""

    states_BLD: torch.Tensor
    tokens_BL: torch.Tensor

    def __len__(self) -> int:
        return int(self.states_BLD.shape[0])

    def to(self, device: Device, dtype: torch.dtype | None = None) -> Self:
        """Move it to a device, and the states to a dtype where one is given."""
        return type(self)(move(self.states_BLD, device, dtype=dtype), move(self.tokens_BL, device))

    def select(self, indices: Sequence[int]) -> Self:
        """Return the conditioning of some of the prompts, in that order."""
        rows = list(indices)
        return type(self)(self.states_BLD[rows], self.tokens_BL[rows])

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name, for a cache entry."""
        return {"states": self.states_BLD, "tokens": self.tokens_BL}

    def with_empty_prompts(self, empty_for: Sequence[Collection[int]], empty: Self) -> Self:
        """Return it with the empty prompt for the prompts whose text encoder (0) gets it."""
        is_replaced = [0 in e for e in empty_for]
        states_BLD = replaced_rows(self.states_BLD, empty.states_BLD, is_replaced)
        return type(self)(states_BLD, replaced_rows(self.tokens_BL, empty.tokens_BL, is_replaced))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Return the conditioning from its `tensors`. Raises KeyError where one is missing."""
        return cls(tensors["states"], tensors["tokens"])

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join conditionings into one."""
        return cls(torch.cat([p.states_BLD for p in parts]), torch.cat([p.tokens_BL for p in parts]))
