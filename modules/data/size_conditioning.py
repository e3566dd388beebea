"""The size conditioning of an image: its original size, its crop and its target size. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from modules.data.buckets import ResizeCrop, Size


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
    def of(cls, original: Size, resize_crop: ResizeCrop) -> Self:
        """Return the size conditioning of an image of that size, resized and cropped to its bucket."""
        return cls(original, resize_crop.crop_left_px, resize_crop.crop_top_px, resize_crop.bucket)

    @classmethod
    def whole(cls, size: Size) -> Self:
        """Return the size conditioning of an uncropped image of this size, as used for samples."""
        return cls(size, 0, 0, size)
