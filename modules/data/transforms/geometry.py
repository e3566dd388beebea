"""The geometry of an image's way to its bucket: cut out, resized, rotated, cropped, mirrored. Pure numbers.

The image, its mask and its conditioning image go through the same `Geometry`, so they stay aligned to the pixel.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from modules.data.buckets import ResizeCrop, Size, direction, edge_of, rotated_extent

MASK_PADDING = (0.1, 0.3)  # of the mask's width or height, at each side
MASK_ROTATION_DEGREES = 20.0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in pixels of an upright image; right and bottom are exclusive."""

    left_px: int
    top_px: int
    right_px: int
    bottom_px: int

    @property
    def size(self) -> Size:
        """Its width and height."""
        return Size(self.right_px - self.left_px, self.bottom_px - self.top_px)

    @property
    def corners(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom, as Pillow's `crop` takes them."""
        return self.left_px, self.top_px, self.right_px, self.bottom_px


@dataclass(frozen=True, slots=True)
class Geometry:
    """The way of the pixels of an upright image to the pixels of its bucket, in this order.

    1. Only `cut` of the image is used; None is all of it.
    2. It is resized to `resize_crop.scaled`.
    3. It is rotated counterclockwise by `degrees` around the middle of the crop, and the crop is taken. The crop never
       reaches beyond the image, so no corner is empty.
    4. It is mirrored left to right if `is_flipped`.
    """

    resize_crop: ResizeCrop
    degrees: float = 0.0
    is_flipped: bool = False
    cut: Box | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the image is only resized and cropped, as without any augmentation (crop jitter aside)."""
        return self.degrees == 0 and not self.is_flipped and self.cut is None

    def scale(self, size: Size) -> float:
        """Return how many trained pixels one pixel of an upright image of that size becomes."""
        source = size if self.cut is None else self.cut.size
        return max(
            self.resize_crop.scaled.width_px / source.width_px, self.resize_crop.scaled.height_px / source.height_px
        )

    def crop_box(self, size: Size) -> tuple[float, float, float, float]:
        """Return the left, top, right and bottom of what is trained, in pixels of an upright image of that size.

        With a rotation it is the rectangle around the rotated crop.
        """
        source = size if self.cut is None else self.cut.size
        left, top = (0, 0) if self.cut is None else (self.cut.left_px, self.cut.top_px)
        fit = self.resize_crop
        scale_x, scale_y = fit.scaled.width_px / source.width_px, fit.scaled.height_px / source.height_px
        half_x, half_y = (side / 2 for side in rotated_extent(fit.bucket.sides_px, self.degrees))
        middle_x = fit.crop_left_px + fit.bucket.width_px / 2
        middle_y = fit.crop_top_px + fit.bucket.height_px / 2
        return (
            left + (middle_x - half_x) / scale_x,
            top + (middle_y - half_y) / scale_y,
            left + (middle_x + half_x) / scale_x,
            top + (middle_y + half_y) / scale_y,
        )

    def crop_corners(self, size: Size) -> tuple[tuple[float, float], ...]:
        """Return the corners of what is trained, in pixels of an upright image of that size.

        Clockwise from the upper left one of the crop before it is mirrored; with a rotation they are rotated.
        """
        source = size if self.cut is None else self.cut.size
        left, top = (0, 0) if self.cut is None else (self.cut.left_px, self.cut.top_px)
        fit = self.resize_crop
        scale_x, scale_y = fit.scaled.width_px / source.width_px, fit.scaled.height_px / source.height_px
        half_x, half_y = fit.bucket.width_px / 2, fit.bucket.height_px / 2
        middle_x, middle_y = fit.crop_left_px + half_x, fit.crop_top_px + half_y
        cosine, sine = direction(self.degrees)
        return tuple(
            (
                left + (middle_x + cosine * x - sine * y) / scale_x,
                top + (middle_y + sine * x + cosine * y) / scale_y,
            )
            for x, y in ((-half_x, -half_y), (half_x, -half_y), (half_x, half_y), (-half_x, half_y))
        )

    def crop_corner(self, size: Size) -> tuple[int, int]:
        """Return the left and top of the crop within the whole resized image, in trained pixels, both at least 0.

        Left is counted from the left edge in training: a mirrored image counts as mirrored before the crop, as in the
        size conditioning of SDXL (kohya's and diffusers' scripts do the same).
        """
        source, fit = size if self.cut is None else self.cut.size, self.resize_crop
        left_px, top_px = fit.crop_left_px, fit.crop_top_px
        right_px = fit.scaled.width_px - fit.bucket.width_px - left_px
        if self.cut is not None:
            scale_x, scale_y = fit.scaled.width_px / source.width_px, fit.scaled.height_px / source.height_px
            left_px += round(self.cut.left_px * scale_x)
            top_px += round(self.cut.top_px * scale_y)
            right_px += round((size.width_px - self.cut.right_px) * scale_x)
        return max(0, right_px if self.is_flipped else left_px), max(0, top_px)


def rotated_fit(source: Size, bucket: Size, degrees: float) -> ResizeCrop:
    """Return how an image of the size `source` is resized so that a crop of `bucket`, rotated, lies within it.

    The crop is in the middle. It is enlarged just as far as the rotation requires.
    """
    edge_px = edge_of(degrees)
    width_px, height_px = (math.ceil(side - 1e-6) + 2 * edge_px for side in rotated_extent(bucket.sides_px, degrees))
    scale = max(width_px / source.width_px, height_px / source.height_px)
    scaled = Size(
        max(width_px, round(source.width_px * scale)),
        max(height_px, round(source.height_px * scale)),
    )
    return ResizeCrop(
        bucket,
        scaled,
        (scaled.width_px - bucket.width_px) // 2,
        (scaled.height_px - bucket.height_px) // 2,
    )


def jitter(fit: ResizeCrop, degrees: float, draw: random.Random) -> ResizeCrop:
    """Return the same resize with its crop, rotated by `degrees`, at a random place inside the resized image."""
    width_px, height_px = rotated_extent(fit.bucket.sides_px, degrees)
    return ResizeCrop(
        fit.bucket,
        fit.scaled,
        fit.crop_left_px + _shift(draw, fit.scaled.width_px, width_px, degrees),
        fit.crop_top_px + _shift(draw, fit.scaled.height_px, height_px, degrees),
    )


def fit_like(geometry: Geometry, size: Size, other: Size) -> Geometry:
    """Return the geometry of an image of the size `other` that is trained with one of `size`, which has `geometry`.

    An image of the same size gets the same geometry. Another one is resized to cover the resized image, is centered on
    it, and gets the same rotation, crop and mirroring. Raises ValueError for a geometry with a cut, which belongs to
    one image.
    """
    if other == size:
        return geometry
    if geometry.cut is not None:
        raise ValueError("An image that is cut to its mask has no counterpart of another size.")
    fit = geometry.resize_crop
    scale = max(fit.scaled.width_px / other.width_px, fit.scaled.height_px / other.height_px)
    scaled = Size(
        max(fit.scaled.width_px, round(other.width_px * scale)),
        max(fit.scaled.height_px, round(other.height_px * scale)),
    )
    left_px = fit.crop_left_px + (scaled.width_px - fit.scaled.width_px) // 2
    top_px = fit.crop_top_px + (scaled.height_px - fit.scaled.height_px) // 2
    return replace(geometry, resize_crop=ResizeCrop(fit.bucket, scaled, left_px, top_px))


def _shift(draw: random.Random, scaled_px: int, window_px: float, degrees: float) -> int:
    """Return a random shift from the middle that keeps the window inside the resized image."""
    if degrees == 0:
        slack_px = scaled_px - int(window_px)
        return draw.randint(0, slack_px) - slack_px // 2
    edge_px = edge_of(degrees)
    reach_px = max(0, int((scaled_px - window_px) / 2 - edge_px))
    return draw.randint(-reach_px, reach_px)


def cut_to_mask(
    size: Size, mask: Box, bucket: Size, *, padding: tuple[float, float, float, float], degrees: float
) -> Box:
    """Return the part of an image that contains its mask's box, for a crop of the bucket's aspect ratio.

    `padding` is a share of the mask's width or height at its left, top, right and bottom. The part is widened to the
    bucket's aspect ratio and to what a rotation by `degrees` needs, as far as the image reaches.
    """
    left = mask.left_px - padding[0] * mask.size.width_px
    top = mask.top_px - padding[1] * mask.size.height_px
    right = mask.right_px + padding[2] * mask.size.width_px
    bottom = mask.bottom_px + padding[3] * mask.size.height_px
    width, height = rotated_extent((right - left, bottom - top), degrees)  # of the mask, as seen in the crop
    width, height = max(width, height * bucket.aspect), max(height, width / bucket.aspect)
    across, down = rotated_extent((width, height), degrees)  # of the crop, as seen in the image
    left_px, right_px = _span((left + right) / 2, across, size.width_px)
    top_px, bottom_px = _span((top + bottom) / 2, down, size.height_px)
    return Box(left_px, top_px, right_px, bottom_px)


def _span(middle: float, length: float, limit_px: int) -> tuple[int, int]:
    """Return start and end of a span of whole pixels inside the image, moved inside where it reaches beyond."""
    whole_px = min(limit_px, max(1, math.ceil(length)))
    start_px = min(max(0, round(middle - whole_px / 2)), limit_px - whole_px)
    return start_px, start_px + whole_px
