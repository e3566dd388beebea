"""The size conditioning of an image: its original size, its crop and its target size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from modules.data.buckets import Size
from modules.data.transforms.geometry import Geometry


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
        it is trained: that of a mirrored image from the other edge (`Geometry.crop_corner`).
        """
        return cls(original, *geometry.crop_corner(original), geometry.resize_crop.bucket)

    @classmethod
    def whole(cls, size: Size) -> Self:
        """Return the size conditioning of an uncropped image of this size, as used for samples."""
        return cls(size, 0, 0, size)
