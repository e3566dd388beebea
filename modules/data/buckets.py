"""Aspect ratio buckets: the sizes images and clips are trained at, and how one is resized and cropped to its bucket."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from modules.settings.shared_types import sides_of

LatentFactor = int | Fraction
"""The pixels along each side of a latent. Where it is a fraction, buckets have sides that give whole numbers."""

# Rotations of a crop inside its image: how much room they need. Pure numbers.
_EDGE_PX = 2  # rounding of the window's position, and the reach of the bicubic filter


@dataclass(frozen=True, slots=True)
class Angles:
    """The rotations that an image may get: by `lowest` to `highest` degrees, 0 or more, in both directions."""

    lowest: float = 0.0
    highest: float = 0.0

    @property
    def edge_px(self) -> int:
        """The room that is needed at each side of the rotated crop."""
        return edge_of(self.highest) if self.lowest == self.highest else _EDGE_PX

    def extent(self, sides: tuple[float, float]) -> tuple[float, float]:
        """Return the largest width and the largest height of the rectangle around a rotated one with these sides."""
        peak = math.degrees(math.atan2(sides[1], sides[0]))  # the angle at which it is widest; the highest at 90 - peak
        peaks = (turn + p for turn in range(0, 541, 180) for p in (peak, -peak, 90 - peak, 90 + peak))
        angles = [self.lowest, self.highest, *(p for p in peaks if self.lowest < p < self.highest)]
        widths, heights = zip(*(rotated_extent(sides, angle) for angle in angles), strict=True)
        return max(widths), max(heights)


NO_ROTATION = Angles()


def edge_of(degrees: float) -> int:
    """Return the room in pixels that is needed at each side of a crop rotated by an angle; none for quarter turns."""
    return 0 if degrees % 90 == 0 else _EDGE_PX


def rotated_extent(sides: tuple[float, float], degrees: float) -> tuple[float, float]:
    """Return the width and the height of the rectangle around a rotated one with these sides."""
    cosine, sine = (abs(part) for part in direction(degrees))
    width, height = sides
    return width * cosine + height * sine, width * sine + height * cosine


def direction(degrees: float) -> tuple[float, float]:
    """Return the cosine and the sine of an angle; quarter turns are exact."""
    if degrees % 90 == 0:
        return ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))[round(degrees / 90) % 4]
    radians = math.radians(degrees)
    return math.cos(radians), math.sin(radians)


AspectRatios = Literal["free", "fixed"]

# OneTrainer's aspect ratios of long to short side; with their inverses 17.
FIXED_ASPECT_RATIOS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0)


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """A width and a height in pixels, and a number of frames: 1 for an image, more for a clip."""

    width_px: int
    height_px: int
    num_frames: int = 1

    @property
    def aspect(self) -> float:
        """Width over height."""
        return self.width_px / self.height_px

    @property
    def sides_px(self) -> tuple[int, int]:
        """Width and height."""
        return self.width_px, self.height_px

    @property
    def num_pixels(self) -> int:
        """The pixels of all frames."""
        return self.width_px * self.height_px * self.num_frames

    def __str__(self) -> str:
        frames = f"x{self.num_frames}" if self.num_frames > 1 else ""
        return f"{self.width_px}x{self.height_px}{frames}"


@dataclass(frozen=True, slots=True)
class ResizeCrop:
    """The way of an image to its bucket's size: resized to cover it, then cropped."""

    bucket: Size
    scaled: Size
    crop_left_px: int
    crop_top_px: int

    @property
    def is_exact(self) -> bool:
        """Whether nothing is cropped away."""
        return self.scaled.sides_px == self.bucket.sides_px


@dataclass(frozen=True, slots=True)
class BucketRules:
    """The rules by which bucket sizes are chosen.

    A resolution is the side of a square in pixels, or a size such as "1024x768", rounded down to multiples of the
    bucket step, which is then the only one for all images. `fixed` replaces all resolutions by such a size. With
    `never_upscale`, an image that is smaller than its bucket, or than its bucket when rotated, gets a smaller bucket of
    the same shape. A clip gets the most of `frame_counts` that it has; 1 is among them.
    """

    resolutions_px: tuple[int | str, ...]
    step_px: int
    max_aspect_ratio: float
    is_bucketing: bool
    fixed: Size | None = None
    aspect_ratios: AspectRatios = "free"
    never_upscale: bool = False
    min_side_px: int = 0
    frame_counts: tuple[int, ...] = (1,)

    def sizes(self, override_px: tuple[int | str, ...] = ()) -> tuple[tuple[Size, ...], ...]:
        """Return the bucket sizes at each resolution; at the resolutions of `override_px` instead, if there are any."""
        if override_px:
            return tuple(self._sizes_at(r) for r in override_px)
        if self.fixed is not None:
            return (self._sizes_at(str(self.fixed)),)
        return tuple(self._sizes_at(r) for r in self.resolutions_px)

    def prompt_sizes(self, override_px: tuple[int | str, ...] = ()) -> tuple[Size, ...]:
        """Return the size of images sampled for prompts without an image at each resolution: a square, or its size.

        `override_px` replaces the resolutions as in `sizes`.
        """
        fixed = (str(self.fixed),) if self.fixed is not None else ()
        resolutions = override_px or fixed or self.resolutions_px
        square = replace(self, is_bucketing=False)
        return tuple(square._sizes_at(r)[0] for r in resolutions)

    def are_fixed(self, override_px: tuple[int | str, ...] = ()) -> tuple[bool, ...]:
        """Return for each resolution of `sizes` whether it is a size, such as "1024x768", that all images get."""
        if override_px or self.fixed is None:
            return tuple(isinstance(r, str) for r in override_px or self.resolutions_px)
        return (True,)

    def resize_crops(
        self,
        size: Size,
        sizes: tuple[tuple[Size, ...], ...],
        *,
        part: Size | None = None,
        angles: Angles = NO_ROTATION,
    ) -> tuple[ResizeCrop, ...]:
        """Return how an image of `size` is resized and cropped at each resolution. `sizes` come from `sizes()`.

        The bucket is chosen for the shape of the image, or of `part`, the box of the mask that it is cropped to.
        `angles` are the rotations it may get. Raises ValueError with the reason for an image that is too small.
        """
        shape = part or size
        self.require_min_side(size)
        num_frames = max(n for n in self.frame_counts if n <= size.num_frames)
        result = []
        for at_resolution in sizes:
            fit = resize_crop_for(shape.width_px, shape.height_px, at_resolution)
            bucket = self._smaller_bucket(size, part, fit.bucket, angles) if self.never_upscale else fit.bucket
            bucket = replace(bucket, num_frames=num_frames)
            result.append(resize_crop_for(size.width_px, size.height_px, (bucket,)))
        return tuple(result)

    def require_min_side(self, size: Size) -> None:
        """Raise ValueError with the reason for an image that is too small."""
        if min(size.width_px, size.height_px) < self.min_side_px:
            raise ValueError(f"smaller than the minimum of {self.min_side_px} px ({size})")

    def _sizes_at(self, resolution: int | str) -> tuple[Size, ...]:
        if isinstance(resolution, str):
            return (Size(*(max(self.step_px, side // self.step_px * self.step_px) for side in sides_of(resolution))),)
        if self.is_bucketing and self.aspect_ratios == "fixed":
            return fixed_bucket_sizes(resolution, step_px=self.step_px, max_aspect_ratio=self.max_aspect_ratio)
        return bucket_sizes(
            resolution, step_px=self.step_px, max_aspect_ratio=self.max_aspect_ratio, is_bucketing=self.is_bucketing
        )

    def _smaller_bucket(self, size: Size, part: Size | None, bucket: Size, angles: Angles) -> Size:
        """Return a bucket, or the largest smaller one of about its aspect ratio that the image covers unscaled.

        It does so at any of the angles. The part around a mask is at least as large as the mask, rotated with it.
        """
        covering = [(size, angles.extent(bucket.sides_px))]
        if part is not None:
            covering.append((part, bucket.sides_px))
        edges_px = 2 * angles.edge_px
        share = min(
            (side - edges_px) / needed
            for whole, extent in covering
            for side, needed in zip(whole.sides_px, extent, strict=True)
        )
        if share >= 1:
            return bucket
        sides = (int(side * share) // self.step_px * self.step_px for side in bucket.sides_px)
        smaller = Size(*sides)
        if min(smaller.sides_px) <= 0:
            rotated = f", rotated by up to {angles.highest:g} degrees" if angles.highest else ""
            raise ValueError(f"too small for a bucket without upscaling ({part or size}{rotated})")
        return smaller


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


def fixed_bucket_sizes(resolution_px: int, *, step_px: int, max_aspect_ratio: float) -> tuple[Size, ...]:
    """Return the bucket sizes of OneTrainer's aspect ratios up to `max_aspect_ratio` at one resolution, sorted.

    The sides are resolution * sqrt(aspect ratio) and resolution / sqrt(aspect ratio), each rounded to the nearest
    multiple of `step_px`, so the area may be a little larger than `resolution_px` squared.
    """
    sizes = set()
    for ratio in FIXED_ASPECT_RATIOS:
        if ratio <= max_aspect_ratio:
            long_px, short_px = (
                max(step_px, round(side / step_px) * step_px)
                for side in (resolution_px * math.sqrt(ratio), resolution_px / math.sqrt(ratio))
            )
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
