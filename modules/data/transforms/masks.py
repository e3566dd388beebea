"""Masks in pixels: reading them, the box around their white, and shrinking them to a circle. Torch-free.

A mask is uint8, (height, width): 255 is trained with full weight, 0 with the weight of the unmasked area.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.data.transforms.geometry import Box

Mask = NDArray[np.uint8]

_WHITE = 128  # and above: inside the box


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
    """Return the box around the pixels of at least half white; None if there are none."""
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
