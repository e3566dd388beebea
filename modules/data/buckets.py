"""Aspect ratio buckets: the sizes images are trained at, and how an image is resized and cropped to one."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """A width and a height in pixels."""

    width_px: int
    height_px: int

    @property
    def aspect(self) -> float:
        """Width over height."""
        return self.width_px / self.height_px

    def __str__(self) -> str:
        return f"{self.width_px}x{self.height_px}"


@dataclass(frozen=True, slots=True)
class ResizeCrop:
    """How an image is brought to its bucket's size: scaled to cover it, then center-cropped."""

    bucket: Size
    scaled: Size
    crop_left_px: int
    crop_top_px: int

    @property
    def is_exact(self) -> bool:
        """Whether nothing is cropped away."""
        return self.scaled == self.bucket


def bucket_sizes(resolution_px: int, *, step_px: int, max_aspect_ratio: float, is_bucketing: bool) -> tuple[Size, ...]:
    """Return the bucket sizes at one resolution, sorted.

    All are multiples of `step_px` with an area of at most `resolution_px` squared and an aspect ratio of at most
    `max_aspect_ratio`. The square is always among them. Without bucketing it is the only one.
    """
    side_px = max(step_px, resolution_px // step_px * step_px)
    sizes = {Size(side_px, side_px)}
    if is_bucketing:
        longest_px = int(resolution_px * math.sqrt(max_aspect_ratio))
        for long_px in range(step_px, longest_px + 1, step_px):
            short_px = resolution_px * resolution_px // long_px // step_px * step_px
            if short_px >= step_px and 1 <= long_px / short_px <= max_aspect_ratio:
                sizes |= {Size(long_px, short_px), Size(short_px, long_px)}
    return tuple(sorted(sizes))


def resize_crop_for(width_px: int, height_px: int, sizes: tuple[Size, ...]) -> ResizeCrop:
    """Return how an image is resized and cropped: to the size of the nearest aspect ratio, the larger one on a tie."""
    aspect = width_px / height_px
    bucket = min(sizes, key=lambda s: (abs(math.log(s.aspect / aspect)), -s.width_px * s.height_px))
    scale = max(bucket.width_px / width_px, bucket.height_px / height_px)
    scaled = Size(
        max(bucket.width_px, round(width_px * scale)),
        max(bucket.height_px, round(height_px * scale)),
    )
    return ResizeCrop(
        bucket,
        scaled,
        (scaled.width_px - bucket.width_px) // 2,
        (scaled.height_px - bucket.height_px) // 2,
    )
