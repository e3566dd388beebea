"""The recipe of an image's version: everything that happens to it between its file and its pixels, drawn once.

`draw` is a pure function of the concept's settings, the sizes and a seed. Each augmentation has its own generator, so
that switching one on leaves the others as they are.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from modules.data.buckets import ResizeCrop, Size
from modules.data.decode import Rgb
from modules.data.image_settings import ImageChanges, Way
from modules.data.rotation import Angles
from modules.data.transforms.colour import NO_CHANGE, Colour
from modules.data.transforms.geometry import (
    MASK_PADDING,
    MASK_ROTATION_DEGREES,
    Box,
    Geometry,
    jittered,
    mask_cut,
    rotated_fit,
)
from modules.system.seeds import derive_seed

_CIRCLE_SHARE = (0.2, 1.0)  # of the circle around the whole mask
_HALF_TURN_DEGREES = 180.0  # of hue, at a strength of 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """The changes of an image: its geometry, its colour, and the shrinking of its mask.

    `mask_circle` is the radius of the circle its mask is cut to, as a share of the circle around the whole mask; None
    leaves the mask as it is. `background` is the colour behind transparent places; None where the image has none.
    """

    geometry: Geometry
    colour: Colour = NO_CHANGE
    mask_circle: float | None = None
    background: Rgb | None = None

    @property
    def bucket(self) -> Size:
        """The size at which the image is trained."""
        return self.geometry.resize_crop.bucket


def plain_recipe(resize_crop: ResizeCrop, background: Rgb | None = None) -> Recipe:
    """Return the recipe without augmentation: resized and cropped."""
    return Recipe(Geometry(resize_crop), background=background)


def angles_of(settings: ImageChanges, *, has_mask_box: bool) -> Angles:
    """Return the rotations that `draw_recipe` may draw for an image."""
    highest = 0.0 if settings.rotate == "off" else settings.rotate_max_degrees
    lowest = highest if settings.rotate == "always" else 0.0
    if settings.mask_rotate_crop and has_mask_box:
        lowest, highest = max(0.0, lowest - MASK_ROTATION_DEGREES), highest + MASK_ROTATION_DEGREES
    return Angles(lowest, highest)


def draw_recipe(
    settings: ImageChanges,
    *,
    size: Size,
    resize_crop: ResizeCrop,
    mask_box: Box | None,
    seed: int,
    background: Rgb | None = None,
) -> Recipe:
    """Return the recipe of an upright image of `size` px; `resize_crop` is its resize and center crop.

    `mask_box` is the box around the white of its mask, if it has one; only the mask crop uses it. Equal arguments give
    equal recipes.
    """
    is_flipped = _is_drawn(settings.flip, seed, "flip")
    turned = _around(0.0, settings.rotate, settings.rotate_max_degrees, seed, "rotate")
    degrees = -turned if is_flipped else turned  # mirrored after the rotation, which turns it around
    cut = None
    if settings.mask_rotate_crop and mask_box is not None:
        generator = _generator(seed, "mask crop")
        degrees += generator.uniform(-MASK_ROTATION_DEGREES, MASK_ROTATION_DEGREES)
        left, top, right, bottom = (generator.uniform(*MASK_PADDING) for _ in range(4))
        cut = mask_cut(size, mask_box, resize_crop.bucket, padding=(left, top, right, bottom), degrees=degrees)
    if cut is not None or degrees:
        resize_crop = rotated_fit(cut.size if cut else size, resize_crop.bucket, degrees)
    if settings.crop_jitter and cut is None:  # the mask crop has a random place already
        resize_crop = jittered(resize_crop, degrees, _generator(seed, "crop"))
    circle = _generator(seed, "mask circle").uniform(*_CIRCLE_SHARE) if settings.circular_mask_shrink else None
    return Recipe(Geometry(resize_crop, degrees, is_flipped, cut), _draw_colour(settings, seed), circle, background)


def _draw_colour(settings: ImageChanges, seed: int) -> Colour:
    return Colour(
        brightness=_around(1.0, settings.brightness, settings.brightness_max, seed, "brightness"),
        contrast=_around(1.0, settings.contrast, settings.contrast_max, seed, "contrast"),
        saturation=_around(1.0, settings.saturation, settings.saturation_max, seed, "saturation"),
        hue_degrees=_around(0.0, settings.hue, settings.hue_max * _HALF_TURN_DEGREES, seed, "hue"),
    )


def _generator(seed: int, augmentation: str) -> random.Random:
    return random.Random(derive_seed(seed, augmentation))


def _is_drawn(way: Way, seed: int, augmentation: str) -> bool:
    return way == "always" or (way == "random" and _generator(seed, augmentation).random() < 0.5)


def _around(neutral: float, way: Way, strength: float, seed: int, augmentation: str) -> float:
    """Return the neutral value, the value `strength` above it, or a uniform draw around it."""
    if way == "off" or strength == 0:
        return neutral
    return neutral + (strength if way == "always" else _generator(seed, augmentation).uniform(-strength, strength))
