"""The recipe of an image's version: everything that happens to it between its file and its pixels, drawn once.

`draw_recipe` is a pure function of the concept's settings, the sizes and a seed. Each augmentation has its own
generator, so that switching one on leaves the others as they are.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modules.data.buckets import Angles, ResizeCrop, Size
from modules.data.decode import Rgb
from modules.data.image_settings import ImageChanges, Way
from modules.data.references import ReferenceFit
from modules.data.transforms.geometry import (
    MASK_PADDING,
    MASK_ROTATION_DEGREES,
    Box,
    Geometry,
    cut_to_mask,
    jitter,
    rotated_fit,
)
from modules.system.seeds import derive_seed

# Brightness, contrast, saturation and hue of an image.
#
# Definitions as in torchvision's `adjust_*` functions: a factor of 1 changes nothing.
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601

FloatPixels = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Colour:
    """Changes of colour, in this order; factors of 1 and a hue shift of 0 change nothing.

    `brightness` multiplies all values. `contrast` multiplies their distance to the image's mean gray, `saturation`
    their distance to the pixel's gray. `hue_degrees` rotates all hues on the color wheel (HSV).
    """

    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue_degrees: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether nothing changes."""
        return self == NO_CHANGE


NO_CHANGE = Colour()


def recolour(pixels_PP3: NDArray[np.uint8], colour: Colour) -> NDArray[np.uint8]:
    """Return pixels (height, width, 3) with their colour changed; the same array if nothing changes.

    Every step clips to the valid range, as it would if it were the only one. Values are rounded once, at the end.
    """
    if colour.is_plain:
        return pixels_PP3
    values = pixels_PP3.astype(np.float32) / np.float32(255)
    if colour.brightness != 1:
        values = np.clip(values * np.float32(colour.brightness), 0, 1)
    if colour.contrast != 1:
        values = _blend(
            values, np.full((1, 1, 1), (values @ _LUMA).mean(dtype=np.float64), np.float32), colour.contrast
        )
    if colour.saturation != 1:
        grays: FloatPixels = (values @ _LUMA)[..., None].astype(np.float32)
        values = _blend(values, grays, colour.saturation)
    if colour.hue_degrees % 360:
        values = _with_hue(values, colour.hue_degrees / 360)
    rounded: NDArray[np.uint8] = np.rint(values * np.float32(255)).astype(np.uint8)
    return rounded


def _blend(values: FloatPixels, towards: FloatPixels, factor: float) -> FloatPixels:
    blended: FloatPixels = np.clip(np.float32(factor) * values + np.float32(1 - factor) * towards, 0, 1)
    return blended


def _with_hue(values: FloatPixels, turns: float) -> FloatPixels:
    """Return the pixels with their hue in HSV moved by `turns`; value and saturation stay."""
    value = values.max(axis=-1)
    chroma = value - values.min(axis=-1)
    red, green, blue = (values[..., i] for i in range(3))
    safe = np.where(chroma > 0, chroma, 1)
    sixths = np.select(
        [value == red, value == green],
        [((green - blue) / safe) % 6, (blue - red) / safe + 2],
        default=(red - green) / safe + 4,
    )
    sixths = sixths + turns * 6
    # Each channel falls off linearly with its distance from the hue (Smith 1978).
    channels = [value - chroma * np.clip(np.minimum(k, 4 - k), 0, 1) for k in ((n + sixths) % 6 for n in (5, 3, 1))]
    shifted: FloatPixels = np.clip(np.stack(channels, axis=-1), 0, 1).astype(np.float32)
    return shifted


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


def recipe_of_reference(fit: ReferenceFit | None, recipe: Recipe, *, file: Size, image: Size) -> tuple[Recipe, Size]:
    """Return the recipe of a reference image, from its image's recipe, and the size to which it is resized before.

    `file` is the size of the reference, `image` the size of its image. A reference with a size of its own is not
    cropped and rotated with its image, but mirrored and recoloured.
    """
    if fit is None or fit.is_aligned(file, image):
        return recipe, image
    geometry = Geometry(fit.way_of(file, recipe.bucket), is_flipped=recipe.geometry.is_flipped)
    return Recipe(geometry, recipe.colour), file


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
    is_flipped = _is_flipped(settings.flip, seed)
    turned = _around(0.0, settings.rotate, settings.rotate_max_degrees, seed, "rotate")
    degrees = -turned if is_flipped else turned  # mirrored after the rotation, which turns it around
    cut = None
    if settings.mask_rotate_crop and mask_box is not None:
        generator = _generator(seed, "mask crop")
        degrees += generator.uniform(-MASK_ROTATION_DEGREES, MASK_ROTATION_DEGREES)
        left, top, right, bottom = (generator.uniform(*MASK_PADDING) for _ in range(4))
        cut = cut_to_mask(size, mask_box, resize_crop.bucket, padding=(left, top, right, bottom), degrees=degrees)
    if cut is not None or degrees:
        resize_crop = rotated_fit(cut.size if cut else size, resize_crop.bucket, degrees)
    if settings.crop_jitter and cut is None:  # the mask crop has a random place already
        resize_crop = jitter(resize_crop, degrees, _generator(seed, "crop"))
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


def _is_flipped(way: Way, seed: int) -> bool:
    return way == "always" or (way == "random" and _generator(seed, "flip").random() < 0.5)


def _around(neutral: float, way: Way, strength: float, seed: int, augmentation: str) -> float:
    """Return the neutral value, the value `strength` above it, or a uniform draw around it."""
    if way == "off" or strength == 0:
        return neutral
    return neutral + (strength if way == "always" else _generator(seed, augmentation).uniform(-strength, strength))
