"""The conditioning of FLUX.1: T5's states of all tokens, padding included, and CLIP's state of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from modules.families.parts.clip_tokens import ClipTokenizer
from modules.families.parts.conditioning import replaced_rows
from modules.system.devices import Device, move, tensor_on


@dataclass(frozen=True, eq=False)
class FluxConditioning:
    """T5's states (B, L, D) of B prompts, CLIP's pooled states (B, E), and the guidance scale of samples.

    The transformer attends to the padding, and its states depend on the prompt, so a cache entry has them, too.
    """

    states_BLD: torch.Tensor
    pooled_BE: torch.Tensor
    guidance: float | None = None

    def __len__(self) -> int:
        return int(self.states_BLD.shape[0])

    def to(self, device: Device, dtype: torch.dtype | None = None) -> Self:
        """Move it to a device, and to a dtype where one is given."""
        states_BLD, pooled_BE = (move(t, device, dtype=dtype) for t in (self.states_BLD, self.pooled_BE))
        return replace(self, states_BLD=states_BLD, pooled_BE=pooled_BE)

    def select(self, indices: Sequence[int]) -> Self:
        """Return the conditioning of some of the prompts, in that order."""
        rows = list(indices)
        return replace(self, states_BLD=self.states_BLD[rows], pooled_BE=self.pooled_BE[rows])

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name, for a cache entry."""
        return {"states": self.states_BLD, "pooled": self.pooled_BE}

    def with_empty_prompts(self, empty_for: Sequence[Collection[int]], empty: Self) -> Self:
        """Return it with the empty prompt's states for the encoders, CLIP (0) and T5 (1), of each prompt."""
        states_BLD = replaced_rows(self.states_BLD, empty.states_BLD, [1 in e for e in empty_for])
        pooled_BE = replaced_rows(self.pooled_BE, empty.pooled_BE, [0 in e for e in empty_for])
        return replace(self, states_BLD=states_BLD, pooled_BE=pooled_BE)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Return the conditioning from its `tensors`. Raises KeyError where one is missing."""
        return cls(tensors["states"], tensors["pooled"])

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join conditionings into one, which has the guidance scale of the first."""
        states_BLD = torch.cat([p.states_BLD for p in parts])
        return cls(states_BLD, torch.cat([p.pooled_BE for p in parts]), parts[0].guidance)


def pooled_states(
    encoder: Any, tokenizer: ClipTokenizer, forward: Callable[..., Any], prompts: Sequence[str]
) -> torch.Tensor:
    """Return CLIP's pooled states (B, E) of prompts, of which it reads the first 75 tokens."""
    ids_BL = tensor_on(
        [tokenizer.chunks(prompt)[0] for prompt in prompts], next(encoder.parameters()).device, torch.long
    )
    pooled_BE: torch.Tensor = forward(input_ids=ids_BL).pooler_output
    return pooled_BE
