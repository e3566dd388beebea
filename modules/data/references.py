"""Reference images: the size at which a model gets each, and the shapes of the batches that hold them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from modules.data.buckets import ResizeCrop, Size

ASPECT_TOLERANCE = 0.02
"""Up to this relative difference, two aspect ratios count as the same: rounding of small sizes."""


@dataclass(frozen=True, slots=True)
class ReferenceSizes:
    """The sizes at which a family's pipeline reads reference images, multiples of `step_px`.

    An image of more than `area_px` pixels is scaled down to that area, and what is left at the edges is cropped. With
    `is_stretched` each is scaled to that area and stretched to the nearest multiples, with `preferred` to the one of
    these sizes with the nearest aspect ratio.
    """

    step_px: int
    area_px: int = 1024 * 1024
    is_stretched: bool = False
    preferred: tuple[Size, ...] = ()

    def way_of(self, file: Size) -> ResizeCrop:
        """Return how the pipeline resizes and crops an image of a size."""
        if self.preferred:
            size = min(self.preferred, key=lambda size: (abs(size.aspect - file.aspect), size))
            return ResizeCrop(size, size, 0, 0)
        if self.is_stretched:
            width_px = math.sqrt(self.area_px * file.aspect)
            sides_px = (max(1, round(px / self.step_px)) * self.step_px for px in (width_px, width_px / file.aspect))
            size = Size(*sides_px)
            return ResizeCrop(size, size, 0, 0)
        return self.of_area(file, self.area_px, is_enlarged=False)

    def of_area(self, file: Size, area_px: int, *, is_enlarged: bool = True) -> ResizeCrop:
        """Return how an image of a size is scaled to an area of at most `area_px` and cropped."""
        scale = math.sqrt(area_px / (file.width_px * file.height_px))
        scale = scale if is_enlarged else min(1.0, scale)
        width_px, height_px = (max(self.step_px, int(side * scale + 1e-6)) for side in file.sides_px)  # inexact roots
        bucket = Size(width_px // self.step_px * self.step_px, height_px // self.step_px * self.step_px)
        left_px, top_px = (width_px - bucket.width_px) // 2, (height_px - bucket.height_px) // 2
        return ResizeCrop(bucket, Size(width_px, height_px), left_px, top_px)


@dataclass(frozen=True, slots=True)
class CaptionImages:
    """How a text encoder reads reference images with a caption: their sizes, and the square that one token covers."""

    sizes: ReferenceSizes
    token_px: int

    @property
    def num_tokens(self) -> int:
        """The tokens of a square image."""
        return round(math.sqrt(self.sizes.area_px) / self.token_px) ** 2


@dataclass(frozen=True, slots=True)
class ReferenceFit:
    """How reference images are brought to their size: all as in the pipeline (`sizes`), or like their image.

    With `follows_image`, one of the aspect ratio of its image is resized, cropped, rotated and mirrored with it, and
    has its size; another one keeps its aspect ratio, and gets about as many pixels.
    """

    sizes: ReferenceSizes
    follows_image: bool = True

    def size_of(self, file: Size, image: Size, bucket: Size) -> Size:
        """Return the size at which the reference image in a file is read, for an image of a size in a bucket."""
        return bucket if self.is_aligned(file, image) else self.way_of(file, bucket).bucket

    def way_of(self, file: Size, bucket: Size) -> ResizeCrop:
        """Return how the reference image in a file is resized and cropped where it is not aligned with its image."""
        if not self.follows_image:
            return self.sizes.way_of(file)
        return self.sizes.of_area(file, bucket.width_px * bucket.height_px)

    def is_aligned(self, file: Size, image: Size) -> bool:
        """Return whether the reference image in a file is resized and cropped with an image of a size."""
        return self.follows_image and abs(file.aspect / image.aspect - 1) <= ASPECT_TOLERANCE


@dataclass(frozen=True, slots=True, order=True)
class BatchShape(Size):
    """The size of the images of a batch, and of the reference images that each of them has, in their order."""

    references: tuple[Size, ...] = ()

    def __str__(self) -> str:
        return "+".join([Size.__str__(self), *map(str, self.references)])


def num_pixels(shape: Size) -> int:
    """Return the pixels of an image or a clip, and of its reference images."""
    references = shape.references if isinstance(shape, BatchShape) else ()
    return sum(size.num_pixels for size in (shape, *references))


def batch_shapes(
    buckets: Iterable[tuple[Size, ...]], files: Iterable[tuple[Size, Sequence[Size]]], fit: ReferenceFit
) -> list[tuple[Size, ...]]:
    """Return the shapes of examples by resolution; a batch holds examples of one shape.

    `buckets` are the sizes of the examples by resolution, `files` the sizes of their images and of the files of their
    reference images. Examples of equal shapes share one tuple.
    """
    known: dict[tuple[tuple[Size, ...], Size, tuple[Size, ...]], tuple[Size, ...]] = {}
    shapes = []
    for sizes, (image, references) in zip(buckets, files, strict=True):
        key = (sizes, image, tuple(references))
        if key not in known:
            known[key] = tuple(
                BatchShape(
                    *size.sides_px, size.num_frames, tuple(fit.size_of(file, image, size) for file in references)
                )
                for size in sizes
            )
        shapes.append(known[key])
    return shapes
