"""The conditioning of SDXL's UNet: the states of two text encoders, a pooled state, and the sizes of each image."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from modules.data.conditioning import SizeConditioning
from modules.families.parts.conditioning import TextConditioning, replaced_rows
from modules.system.devices import Device, move, tensor_on


@dataclass(frozen=True, eq=False)
class SdxlConditioning:
    """Text states of B prompts, their pooled state (B, E), and sizes (B, 6) once the images are known.

    The pooled state is the second encoder's, of a prompt's first chunk. The states of both encoders are concatenated
    along the last axis.
    """

    text: TextConditioning
    pooled_BE: torch.Tensor
    sizes_B6: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.text)

    def to(self, device: Device, dtype: torch.dtype | None = None) -> Self:
        """Move it to a device, and the text to a dtype if one is given; sizes stay float32, exact to the pixel."""
        sizes_B6 = None if self.sizes_B6 is None else move(self.sizes_B6, device)
        return type(self)(self.text.to(device, dtype), move(self.pooled_BE, device, dtype=dtype), sizes_B6)

    def select(self, indices: Sequence[int]) -> Self:
        """Return the conditioning of some of the prompts, in that order."""
        rows = list(indices)
        sizes_B6 = None if self.sizes_B6 is None else self.sizes_B6[rows]
        return type(self)(self.text.select(rows), self.pooled_BE[rows], sizes_B6)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the text's tensors by name, for a cache entry; sizes belong to images and are not among them."""
        return {**self.text.tensors(), "pooled": self.pooled_BE}

    def with_size_conditioning(self, size_conditionings: Sequence[SizeConditioning]) -> Self:
        """Return it with the size conditioning of its images, one per prompt."""
        assert len(size_conditionings) == len(self), (
            f"{len(size_conditionings)} size conditionings for {len(self)} prompts"
        )
        sizes_B6 = tensor_on([_sizes(f) for f in size_conditionings], self.pooled_BE.device, torch.float32)
        return replace(self, sizes_B6=sizes_B6)

    def with_empty_prompts(self, empty_for: Sequence[Collection[int]], empty: Self, *, first_width: int) -> Self:
        """Return it with `empty` for the encoders 0 and 1 of each prompt; the first's states have `first_width`."""
        is_first, is_second = ([index in e for e in empty_for] for index in (0, 1))
        states_BLD, empty_1LD = self.text.states_BLD, empty.text.states_BLD
        first_BLD = replaced_rows(states_BLD[..., :first_width], empty_1LD[..., :first_width], is_first)
        second_BLD = replaced_rows(states_BLD[..., first_width:], empty_1LD[..., first_width:], is_second)
        pooled_BE = replaced_rows(self.pooled_BE, empty.pooled_BE, is_second)
        return replace(self, text=TextConditioning(torch.cat([first_BLD, second_BLD], dim=-1)), pooled_BE=pooled_BE)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Return the conditioning from its `tensors`. Raises KeyError if one is missing."""
        return cls(TextConditioning.from_tensors(tensors), tensors["pooled"])

    @classmethod
    def join(cls, parts: Sequence[Self], empty: Self) -> Self:
        """Join conditionings into one, without sizes; shorter ones are padded with the empty prompt's states."""
        text = TextConditioning.join([p.text for p in parts], empty.text)
        return cls(text, torch.cat([p.pooled_BE for p in parts]))


def _sizes(size_conditioning: SizeConditioning) -> list[int]:
    """Return the six numbers in the model's training order: original size, crop, target size, height before width."""
    original, target = size_conditioning.original, size_conditioning.target
    crop = [size_conditioning.crop_top_px, size_conditioning.crop_left_px]
    return [original.height_px, original.width_px, *crop, target.height_px, target.width_px]
