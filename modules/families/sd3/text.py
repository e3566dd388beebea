"""The conditioning of Stable Diffusion 3: the states of each text encoder that the model has, apart from each other.

So a cache entry has none of the zeros between and behind them, and each encoder's can be replaced by those of the empty
prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn

from modules.families.parts.conditioning import replaced_rows
from modules.families.parts.part_classes import CLIP_CHUNK_TOKENS
from modules.system.devices import Device, move

ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
"""CLIP-L, CLIP-G and T5, in the order in which the transformer gets their states."""
CLIPS = ENCODERS[:2]
_POOLED = "_pooled"
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Sd3Conditioning:
    """The states (B, L, D) of B prompts by text encoder, and the pooled states (B, E) of the CLIPs.

    The transformer attends to the padding, and its states depend on the prompt, so a cache entry has them, too.
    """

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
        """Return it with the empty prompt's states for the encoders of each prompt, by their index among `ENCODERS`."""

        def replaced(of: Tensors, of_empty: Tensors) -> dict[str, torch.Tensor]:
            return {
                name: replaced_rows(rows, of_empty[name], [ENCODERS.index(name) in e for e in empty_for])
                for name, rows in of.items()
            }

        return type(self)(replaced(self.states, empty.states), replaced(self.pooled, empty.pooled))

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> Self:
        """Return the conditioning from its `tensors`."""
        states = {name: tensors[name] for name in ENCODERS if name in tensors}
        return cls(states, {name: tensors[f"{name}{_POOLED}"] for name in CLIPS if name in states})

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join conditionings into one."""
        first = parts[0]
        states = {name: torch.cat([p.states[name] for p in parts]) for name in first.states}
        return cls(states, {name: torch.cat([p.pooled[name] for p in parts]) for name in first.pooled})

    def joint(self, width: int, pooled_width: int, t5_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the transformer's inputs: states (B, 77 + t5_tokens, width), and pooled states (B, pooled_width).

        The states are those of both CLIPs side by side, with zeros behind them, and then T5's. Zeros stand for an
        encoder that the model lacks; the states and the pooled states of a CLIP have the same width.
        """
        like = next(iter(self.states.values()))
        num_clip = CLIP_CHUNK_TOKENS + 2
        behind = sum(t.shape[-1] for name, t in self.pooled.items() if name != ENCODERS[0])
        before = 0 if ENCODERS[0] in self.states else pooled_width - behind
        clips_BLD = [self.states[name] for name in CLIPS if name in self.states]
        clip_BLD = torch.cat(clips_BLD, dim=-1) if clips_BLD else like.new_zeros(len(self), num_clip, 0)
        pooled_BE = torch.cat([like.new_zeros(len(self), 0), *self.pooled.values()], dim=-1)
        before = before if clips_BLD else 0
        t5_BLD = self.states.get(ENCODERS[2])
        if t5_BLD is None:
            t5_BLD = like.new_zeros(len(self), t5_tokens, width)
        clip_BLD = nn.functional.pad(clip_BLD, (before, width - before - clip_BLD.shape[-1]))
        pooled_BE = nn.functional.pad(pooled_BE, (before, pooled_width - before - pooled_BE.shape[-1]))
        return torch.cat([clip_BLD, t5_BLD], dim=1), pooled_BE
