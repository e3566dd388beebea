"""Applying a recipe: from an image's file to its pixels, and its mask and conditioning image with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.data.buckets import Size, direction
from modules.data.decode import WHITE, flatten
from modules.data.images import open_image, upright
from modules.data.transforms.geometry import Geometry
from modules.data.transforms.masks import Mask, alpha_mask, as_mask, circle_of
from modules.data.transforms.recipe import Recipe, recolour

# Parts of the cache keys: increase one when the pixels of the same image would change.
RESAMPLER = "pillow-lanczos-reducing-3"
UPSAMPLER = "pillow-bicubic-1"  # of images that are resized to more pixels
AUGMENTATION = "pillow-affine-1"  # of images that are rotated, mirrored, cut out or recoloured

Pixels = NDArray[np.uint8]

_Filter = Image.Resampling


def load_pixels(path: Path, recipe: Recipe) -> Pixels:
    """Return the image as it is trained: uint8, (height, width, 3) of its bucket.

    Rotated to its EXIF orientation, in sRGB, transparency on the background, then as in the recipe. An image that
    already has the bucket's size and is not augmented passes bit-exact. Raises BrokenImageError if decoding fails.
    """
    with open_image(path) as raw:
        image = resize_and_crop(flatten(upright(raw), recipe.background or WHITE), recipe.geometry)
        return recolour(np.asarray(image, dtype=np.uint8), recipe.colour)


def load_conditioning_image(path: Path, recipe: Recipe, *, image_size: Size, follows_colour: bool = False) -> Pixels:
    """Return the conditioning image of an image of that size: uint8, (height, width, 3), with the same geometry.

    Its colours are augmented only if it `follows_colour`. Raises BrokenImageError where it cannot be decoded.
    """
    with open_image(path) as raw:
        image = _at_size(flatten(upright(raw)), image_size, _Filter.LANCZOS)
        pixels_PP3 = np.asarray(resize_and_crop(image, recipe.geometry), dtype=np.uint8)
    return recolour(pixels_PP3, recipe.colour) if follows_colour else pixels_PP3


def load_mask(path: Path, recipe: Recipe, *, image_size: Size, is_alpha: bool) -> Mask:
    """Return the mask of an image of that size: uint8, (height, width), with the same geometry, then shrunk.

    `is_alpha` reads the opacity of the image itself. Raises BrokenImageError where it cannot be decoded.
    """
    with open_image(path) as raw:
        whole = upright(raw)
        mask = _at_size(alpha_mask(whole) if is_alpha else as_mask(whole), image_size, _Filter.BILINEAR)
        mask_PP = np.asarray(resize_and_crop(mask, recipe.geometry), dtype=np.uint8)
    return mask_PP if recipe.mask_circle is None else circle_of(mask_PP, recipe.mask_circle)


def resize_and_crop(image: Image.Image, geometry: Geometry) -> Image.Image:
    """Return an upright image at its bucket's size.

    Antialiased Lanczos down, bicubic up; gray images, which are masks, are resampled linearly so that no value
    overshoots. Without resizing and rotation the pixels are copied.
    """
    if geometry.cut is not None:
        image = image.crop(geometry.cut.corners)
    fit = geometry.resize_crop
    wanted = (fit.scaled.width_px, fit.scaled.height_px)
    if image.size != wanted:
        is_larger = wanted[0] > image.width or wanted[1] > image.height
        wide = _Filter.BICUBIC if is_larger else _Filter.LANCZOS
        image = image.resize(wanted, _Filter.BILINEAR if image.mode == "L" else wide, reducing_gap=3.0)
    if geometry.degrees:
        image = _rotate(image, geometry)
    elif not fit.is_exact:
        left, top = fit.crop_left_px, fit.crop_top_px
        image = image.crop((left, top, left + fit.bucket.width_px, top + fit.bucket.height_px))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if geometry.is_flipped else image


def _rotate(image: Image.Image, geometry: Geometry) -> Image.Image:
    """Return the crop of a resized image, rotated counterclockwise around its middle."""
    fit = geometry.resize_crop
    cosine, sine = direction(geometry.degrees)
    half_x, half_y = fit.bucket.width_px / 2, fit.bucket.height_px / 2
    middle_x, middle_y = fit.crop_left_px + half_x, fit.crop_top_px + half_y
    # From a pixel of the crop to the place it comes from.
    coefficients = (
        cosine, -sine, middle_x - cosine * half_x + sine * half_y,
        sine, cosine, middle_y - sine * half_x - cosine * half_y,
    )  # fmt: skip
    filter_ = _Filter.BILINEAR if image.mode == "L" else _Filter.BICUBIC
    size = (fit.bucket.width_px, fit.bucket.height_px)
    return image.transform(size, Image.Transform.AFFINE, coefficients, resample=filter_)


def _at_size(image: Image.Image, size: Size, filter_: Image.Resampling) -> Image.Image:
    """Return a companion of an image at the image's own size."""
    wanted = (size.width_px, size.height_px)
    return image if image.size == wanted else image.resize(wanted, filter_)
