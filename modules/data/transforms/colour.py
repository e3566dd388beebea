"""Brightness, contrast, saturation and hue of an image.

Definitions as in torchvision's `adjust_*` functions: a factor of 1 changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601

FloatPixels = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Colour:
    """Changes of colour, in this order; factors of 1 and a hue shift of 0 change nothing.

    `brightness` multiplies all values. `contrast` multiplies their distance to the image's mean gray, `saturation`
    their distance to the pixel's own gray. `hue_degrees` rotates all hues on the color wheel (HSV).
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


def recoloured(pixels_PP3: NDArray[np.uint8], colour: Colour) -> NDArray[np.uint8]:
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
