"""The conditioning that a family computes from captions, complete or partly from a cache, and the size conditioning."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from modules.data.buckets import Size
from modules.data.transforms.geometry import Geometry

if TYPE_CHECKING:
    import torch

    from modules.system.devices import Device


# The size conditioning of an image: its original size, its crop and its target size.


@dataclass(frozen=True, slots=True)
class SizeConditioning:
    """An image's original size, the position of its crop after scaling, and the size after cropping.

    SDXL's original size, crop coordinates and target size (Podell et al. 2023, sections 2.2 and 2.3).
    """

    original: Size
    crop_left_px: int
    crop_top_px: int
    target: Size

    @classmethod
    def of(cls, original: Size, geometry: Geometry) -> Self:
        """Return the size conditioning of an image of that size, brought to its bucket by `geometry`.

        The original size is the file's, also where the mask crop uses only a part. The crop is counted in the image as
        it is trained: a mirrored image's from the other edge (`Geometry.crop_corner`).
        """
        return cls(original, *geometry.crop_corner(original), geometry.resize_crop.bucket)

    @classmethod
    def whole(cls, size: Size) -> Self:
        """Return the size conditioning of an uncropped image of this size, as used for samples."""
        return cls(size, 0, 0, size)


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
        """Return the conditioning of prompts, padded to the longest of them and of the prompts in `padded_like`."""
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

    `entries` holds one conditioning for each caption, and None for captions that are encoded during the step because
    their text encoder is trained. `empty` is the empty prompt's, with which shorter captions are padded. All of it is
    on the training device, in the training dtype.
    """

    entries: Sequence[Conditioning | None]
    empty: Conditioning

    def select(self, indices: Sequence[int]) -> PartialConditioning:
        """Return the conditioning of some of the captions, in their order."""
        return PartialConditioning([self.entries[i] for i in indices], self.empty)

    def complete(
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

    They are padded to the longest of them and of the prompts in `padded_like`.
    """
    match delivered:
        case None:
            return encoder.encode_prompts(captions, padded_like)
        case PartialConditioning():
            return delivered.complete(captions, encoder, padded_like)
        case _:
            return delivered
