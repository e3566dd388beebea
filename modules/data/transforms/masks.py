"""Masks in pixels: reading them, the box around their white, shrinking them to a circle, drawing them.

A mask is uint8, (height, width): 255 is trained with full weight, 0 with the weight of the unmasked area.
"""

from __future__ import annotations

import math
import random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from modules.data.buckets import Size
from modules.data.transforms.geometry import Box

Mask = NDArray[np.uint8]

_WHITE = 128  # and above: inside the box
_WHOLE_PROBABILITY = 0.25  # of an inpainting mask
_MAX_STROKES, _MAX_RECTANGLES, _MAX_CORNERS = 5, 4, 5


def as_mask(image: Image.Image) -> Image.Image:
    """Return a mask file's image in 8-bit gray. Where it is transparent, it is black."""
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        black = Image.new("RGBA", rgba.size, (0, 0, 0, 255))
        image = Image.alpha_composite(black, rgba)
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image).astype(np.uint32) // 257).astype(np.uint8))
    return image.convert("L")


def alpha_mask(image: Image.Image) -> Image.Image:
    """Return an image's opacity as its mask: white where it is opaque, and everywhere if it has no transparency."""
    if not image.has_transparency_data:
        return Image.new("L", image.size, 255)
    return image.convert("RGBA").getchannel("A")


def white_box(mask: Image.Image) -> Box | None:
    """Return the box around the pixels of at least half white; None without such pixels."""
    box = mask.point(lambda value: 255 if value >= _WHITE else 0).getbbox()
    return Box(*box) if box else None


def circle_of(mask_PP: Mask, share: float) -> Mask:
    """Return a mask cut to a circle around the middle of its white, black outside of it.

    The radius is `share` times the distance from there to the farthest pixel that is not black. A mask without white is
    returned unchanged.
    """
    rows, columns = np.nonzero(mask_PP)
    if not len(rows):
        return mask_PP
    weights = mask_PP[rows, columns].astype(np.float64)
    row, column = np.average(rows, weights=weights), np.average(columns, weights=weights)
    squares = (rows - row) ** 2 + (columns - column) ** 2
    outside = squares > squares.max() * share**2
    result = mask_PP.copy()
    result[rows[outside], columns[outside]] = 0
    return result


def random_inpainting_mask(size: Size, generator: random.Random) -> Mask:
    """Return a random mask for training an inpainting model: uint8, (height, width), 255 where it inpaints.

    A quarter of the masks are white everywhere, as in the training of Stable Diffusion's inpainting models (their model
    card). The others are thick strokes or rectangles with equal probability (the wide masks of Suvorov et al. 2022,
    "LaMa", section 2.3), each at least in part inside the image. A function of the arguments alone.
    """
    if generator.random() < _WHOLE_PROBABILITY:
        return np.full((size.height_px, size.width_px), 255, np.uint8)
    mask = Image.new("L", (size.width_px, size.height_px))
    draw = ImageDraw.Draw(mask)
    if generator.random() < 0.5:
        for _ in range(generator.randint(1, _MAX_STROKES)):
            _draw_stroke(draw, size, generator)
    else:
        for _ in range(generator.randint(1, _MAX_RECTANGLES)):
            _draw_rectangle(draw, size, generator)
    return np.asarray(mask, dtype=np.uint8)


def _draw_stroke(draw: ImageDraw.ImageDraw, size: Size, generator: random.Random) -> None:
    """Draw a chain of lines with round corners: each a fifth to half of the shorter side, a tenth to a fifth wide."""
    side_px = min(size.width_px, size.height_px)
    radius_px = max(1.0, side_px * generator.uniform(0.1, 0.2) / 2)
    x, y = generator.uniform(0, size.width_px - 1), generator.uniform(0, size.height_px - 1)
    corners = [(x, y)]
    for _ in range(generator.randint(1, _MAX_CORNERS)):
        angle, length_px = generator.uniform(0, 2 * math.pi), side_px * generator.uniform(0.2, 0.5)
        x = min(max(x + length_px * math.cos(angle), 0.0), size.width_px - 1)
        y = min(max(y + length_px * math.sin(angle), 0.0), size.height_px - 1)
        corners.append((x, y))
    draw.line(corners, fill=255, width=max(1, round(2 * radius_px)))
    for x, y in corners:
        draw.ellipse((x - radius_px, y - radius_px, x + radius_px, y + radius_px), fill=255)


def _draw_rectangle(draw: ImageDraw.ImageDraw, size: Size, generator: random.Random) -> None:
    """Draw a rectangle of a fifth to two thirds of each side, wholly inside."""
    width_px = max(1, round(size.width_px * generator.uniform(0.2, 0.67)))
    height_px = max(1, round(size.height_px * generator.uniform(0.2, 0.67)))
    left, top = generator.randint(0, size.width_px - width_px), generator.randint(0, size.height_px - height_px)
    draw.rectangle((left, top, left + width_px - 1, top + height_px - 1), fill=255)
