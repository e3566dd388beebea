"""The conditioning of families whose denoiser attends to a sequence of text states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import nn

from modules.system.devices import Device, move, tensor_on


@dataclass(frozen=True, eq=False)
class TextConditioning:
    """Text states (B, L, D): L is a multiple of 77, one chunk after the other."""

    states_BLD: torch.Tensor

    def __len__(self) -> int:
        return int(self.states_BLD.shape[0])

    def to(self, device: Device, dtype: torch.dtype | None = None) -> Self:
        """Move it to a device, and to a dtype if one is given."""
        return type(self)(move(self.states_BLD, device, dtype=dtype))

    def select(self, indices: Sequence[int]) -> Self:
        """Return the states of some of the prompts, in that order."""
        return type(self)(self.states_BLD[list(indices)])

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name, for a cache entry."""
        return {"states": self.states_BLD}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Return the conditioning from its `tensors`. Raises KeyError if one is missing."""
        return cls(tensors["states"])

    @classmethod
    def join(cls, parts: Sequence[Self], empty: Self) -> Self:
        """Join conditionings into one; shorter ones are padded with whole chunks of the empty prompt's states."""
        longest = max(p.states_BLD.shape[1] for p in parts)
        return cls(torch.cat([_append_chunks(p.states_BLD, longest, empty.states_BLD) for p in parts]))


@dataclass(frozen=True, eq=False)
class TokenConditioning:
    """Text states (B, L, D) of B prompts of different lengths, and the tokens of each; behind them are zeros.

    Denoisers that do not attend to padding need no more. A cache entry holds one prompt, so only its tokens.
    """

    states_BLD: torch.Tensor
    lengths: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(cls, states_LD: Sequence[torch.Tensor]) -> Self:
        """Return the conditioning of prompts from the states (L, D) of each."""
        return cls(nn.utils.rnn.pad_sequence(list(states_LD), batch_first=True), tuple(len(s) for s in states_LD))

    def split(self) -> list[torch.Tensor]:
        """Return the states (L, D) of each prompt, without padding."""
        return [states_LD[:length] for states_LD, length in zip(self.states_BLD, self.lengths, strict=True)]

    def to(self, device: Device, dtype: torch.dtype | None = None) -> Self:
        """Move it to a device, and to a dtype if one is given."""
        return replace(self, states_BLD=move(self.states_BLD, device, dtype=dtype))

    def select(self, indices: Sequence[int]) -> Self:
        """Return the states of some of the prompts, in that order."""
        states = self.split()
        return self._with([states[index] for index in indices])

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name: of one prompt its states, of several also their lengths if they differ."""
        if min(self.lengths) == self.states_BLD.shape[1]:
            return {"states": self.states_BLD}
        return {"states": self.states_BLD, "lengths": torch.tensor(self.lengths)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Return the conditioning from its `tensors`. Raises KeyError if one is missing."""
        states_BLD = tensors["states"]
        batch, longest = states_BLD.shape[:2]
        return cls(states_BLD, tuple(tensors["lengths"].tolist()) if "lengths" in tensors else (longest,) * batch)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join conditionings into one, padded to the longest, with the other values of the first."""
        return parts[0]._with([states for part in parts for states in part.split()])

    def with_empty_prompts(self, empty_for: Sequence[Collection[int]], empty: Self) -> Self:
        """Return it with the empty prompt's states for the prompts whose text encoder (0) gets it."""
        [empty_LD] = empty.split()
        return self._with([empty_LD if 0 in e else states for e, states in zip(empty_for, self.split(), strict=True)])

    def _with(self, states_LD: Sequence[torch.Tensor]) -> Self:
        """Return the conditioning with other states (L, D) of each prompt."""
        text = TokenConditioning.of(states_LD)
        return replace(self, states_BLD=text.states_BLD, lengths=text.lengths)


@dataclass(frozen=True, eq=False)
class RowConditioning:
    """Tensors with one row for each of B prompts, padding included, by their names in a cache entry.

    `encoder_of` is the index of the text encoder that each of them comes from; those of encoders that a model lacks are
    missing. Conditionings with further values keep them.
    """

    encoder_of: ClassVar[Mapping[str, int]]

    rows: Mapping[str, torch.Tensor]

    def __len__(self) -> int:
        return int(next(iter(self.rows.values())).shape[0])

    def to(self, device: Device, dtype: torch.dtype | None = None) -> Self:
        """Move it to a device, and all but integers to a dtype if one is given."""
        return self._with(lambda name, rows: move(rows, device, dtype=dtype if rows.is_floating_point() else None))

    def select(self, indices: Sequence[int]) -> Self:
        """Return the conditioning of some of the prompts, in that order."""
        chosen = list(indices)
        return self._with(lambda name, rows: rows[chosen])

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name, for a cache entry."""
        return dict(self.rows)

    def with_empty_prompts(self, empty_for: Sequence[Collection[int]], empty: Self) -> Self:
        """Return it with the empty prompt's rows for some text encoders of each prompt, by their index."""
        return self._with(
            lambda name, rows: replace_rows(rows, empty.rows[name], [self.encoder_of[name] in e for e in empty_for])
        )

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Return the conditioning from its `tensors`. Raises KeyError if one is missing."""
        return cls({name: tensors[name] for name in cls.encoder_of})

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join conditionings into one, with the other values of the first."""
        return parts[0]._with(lambda name, rows: torch.cat([part.rows[name] for part in parts]))

    def _with(self, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Self:
        return replace(self, rows={name: change(name, rows) for name, rows in self.rows.items()})


@dataclass(frozen=True, eq=False)
class PooledConditioning(RowConditioning):
    """The states (B, L, D) of all tokens of B prompts and their pooled states (B, E), both of one text encoder."""

    encoder_of = MappingProxyType({"states": 0, "pooled": 0})


def pooled_name(encoder: str) -> str:
    """Return the name of a text encoder's pooled states in a conditioning that has its states under its name."""
    return f"{encoder}_pooled"


def visible_tokens(lengths: Sequence[int], device: torch.device) -> torch.Tensor | None:
    """Return which tokens (B, L) of padded prompts are their own; None for all, if they are equally long."""
    return None if min(lengths) == max(lengths) else token_mask(lengths, device)


def token_mask(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return which tokens (B, L) of padded prompts are their own, for a denoiser that always needs the mask."""
    longest = max(lengths)
    return torch.arange(longest, device=device)[None] < tensor_on([[length] for length in lengths], device)


def guidance_input(
    config: Any, scale: float | None, trained: float, timesteps_B: torch.Tensor, *, factor: float = 1.0
) -> dict[str, torch.Tensor]:
    """Return the guidance scale as a denoiser's input `guidance`, times `factor`; no input if its config has none.

    `scale` is the scale of samples, which the conditioning has; without one it is `trained`, the scale in training.
    """
    if not config.guidance_embeds:
        return {}
    guidance = factor * (trained if scale is None else scale)
    return {"guidance": torch.full_like(timesteps_B, guidance, dtype=torch.float32)}


def stack_states(states: Sequence[torch.Tensor], *, dim: int = 0) -> torch.Tensor:
    """Return states of equal sizes, stacked, also if their 16-bit dtype differs from autocast's.

    Autocast on a CPU refuses to join those.
    """
    with torch.autocast("cpu", enabled=False):
        return torch.stack(list(states), dim=dim)


def replace_rows(rows_BX: torch.Tensor, other_1X: torch.Tensor, is_replaced: Sequence[bool]) -> torch.Tensor:
    """Return the rows (B, ...) of a tensor with another (1, ...) in place of those for which `is_replaced` holds."""
    return torch.cat([other_1X if r else row[None] for row, r in zip(rows_BX, is_replaced, strict=True)])


def _append_chunks(states_BLD: torch.Tensor, length: int, empty_1LD: torch.Tensor) -> torch.Tensor:
    missing_chunks = (length - states_BLD.shape[1]) // empty_1LD.shape[1]
    if missing_chunks == 0:
        return states_BLD
    filler = empty_1LD.expand(states_BLD.shape[0], -1, -1)
    return torch.cat([states_BLD, *[filler] * missing_chunks], dim=1)
