"""How an image came to be what is trained on: what it was, what was cut off, what it is now. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from modules.data.buckets import ResizeCrop, Size


@dataclass(frozen=True, slots=True)
class SizeConditioning:
    """The size an image had, where its crop begins once it is scaled, and the size that is left.

    What SDXL calls original size, crop coordinates and target size (Podell et al. 2023, sections 2.2 and 2.3).
    """

    original: Size
    crop_left_px: int
    crop_top_px: int
    target: Size

    @classmethod
    def of(cls, original: Size, resize_crop: ResizeCrop) -> Self:
        """Return the frame of a picture of that size, placed in its bucket."""
        return cls(original, resize_crop.crop_left_px, resize_crop.crop_top_px, resize_crop.bucket)

    @classmethod
    def whole(cls, size: Size) -> Self:
        """Return the frame of an image that was always of this size and lost nothing: what a sample is to be."""
        return cls(size, 0, 0, size)
