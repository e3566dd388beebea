"""The conditioning that a family computes from captions, complete or partly from a cache."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:  # the window's process imports the type but never torch
    import torch

    from modules.data.size_conditioning import SizeConditioning
    from modules.system.devices import Device


class Conditioning(Protocol):
    """The conditioning of prompts; opaque outside of its family."""

    def __len__(self) -> int:
        """The number of prompts."""
        ...

    def to(self, device: Device, dtype: torch.dtype | None = None) -> Self:
        """Return it on a device, its floating tensors in a dtype."""
        ...

    def select(self, indices: Sequence[int]) -> Self:
        """Return the conditioning of some of the prompts, in that order."""
        ...

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return its tensors by name, for a cache entry."""
        ...


class PromptEncoder(Protocol):
    """The part of a model family that computes conditioning: see `ModelFamily`, which implements it."""

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> Conditioning:
        """Return the conditioning of prompts, padded to the longest of them and of those in `padded_like`."""
        ...

    def with_size_conditioning(
        self, conditioning: Conditioning, size_conditionings: Sequence[SizeConditioning]
    ) -> Conditioning:
        """Return the conditioning with the size conditioning of its images, where the model supports it."""
        ...

    def with_empty_prompts(
        self, conditioning: Conditioning, empty_for: Sequence[Collection[int]], empty: Conditioning
    ) -> Conditioning:
        """Return the conditioning with the empty prompt's for some text encoders of each prompt, by their index.

        `empty` is the conditioning of the empty prompt alone, as long as the others.
        """
        ...

    def join(self, conditionings: Sequence[Conditioning], empty: Conditioning) -> Conditioning:
        """Return several conditionings as one, the shorter ones padded with the empty prompt's."""
        ...


@dataclass(frozen=True, eq=False)
class PartialConditioning:
    """The conditioning of a batch in which some captions are encoded during the step.

    `entries` holds one conditioning for each caption, and None for those that are encoded during the step because their
    text encoder is trained. `empty` is the empty prompt's, with which shorter captions are padded. All of it is on the
    training device, in the training dtype.
    """

    entries: Sequence[Conditioning | None]
    empty: Conditioning

    def select(self, indices: Sequence[int]) -> PartialConditioning:
        """Return that of some of the captions, in that order."""
        return PartialConditioning([self.entries[i] for i in indices], self.empty)

    def completed(
        self, captions: Sequence[str], encoder: PromptEncoder, padded_like: Sequence[str] = ()
    ) -> Conditioning:
        """Return the conditioning of all captions; the missing ones are encoded now, in one call, with gradients."""
        missing = [c for c, entry in zip(captions, self.entries, strict=True) if entry is None]
        if not missing:  # the process that shares the micro-batch encodes them; the empty prompt has their length
            whole = encoder.encode_prompts([""], padded_like)
            joined = encoder.join([*(e for e in self.entries if e is not None), whole], self.empty)
            return joined.select(range(len(captions)))
        encoded = encoder.encode_prompts(missing, padded_like)
        rows = iter(range(len(missing)))
        entries = [encoded.select([next(rows)]) if entry is None else entry for entry in self.entries]
        return encoder.join(entries, self.empty)


DeliveredConditioning = Conditioning | PartialConditioning | None
"""The conditioning of a batch as the loader provides it: complete, partial, or None if all is encoded in the step."""


def complete_conditioning(
    delivered: DeliveredConditioning,
    captions: Sequence[str],
    encoder: PromptEncoder,
    padded_like: Sequence[str] = (),
) -> Conditioning:
    """Return the complete conditioning of captions; the missing ones are encoded now.

    They are padded to the longest of them and of those in `padded_like`.
    """
    match delivered:
        case None:
            return encoder.encode_prompts(captions, padded_like)
        case PartialConditioning():
            return delivered.completed(captions, encoder, padded_like)
        case _:
            return delivered
