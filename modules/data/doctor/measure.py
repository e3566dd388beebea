"""The measurements of the pixels of an image, made on one reduced decoding of it.

All figures refer to the image at about 512 x 512 px, so that they can be compared between images of any size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.data.decode import WHITE, Rgb, changes_colours, flatten
from modules.data.images import open_image, upright

SIDE_PX = 512  # the area of the measured image is at most the square of it
COLOURS_SIDE = 16
_TILE_PX = 32  # of the halved image: a sixteenth of its side, so that a small sharp subject fills some tiles
_MIN_CONTRAST = 15.0  # of 255: below, rounding and compression dominate the Laplacian
_MIN_NOISE = 5.0  # of 255: the noise that remains when a large image is reduced; any camera has less
_SHARPEST = 0.05  # of the tiles: a blurred background is usual
_OPAQUE = 250  # of 255: below, a pixel shows the background
_ANIMATED_FORMATS = ("GIF", "WEBP", "PNG", "AVIF")  # in others, several images are pages, thumbnails or depth maps
# Bars of one colour at the edges: letterbox (above and below) and pillarbox (left and right).
_BAR_SAME = 12  # of 255: compression moves the colour of a bar by less
_BAR_STRAYS = 0.02  # of a line: pixels of another colour that still belong to a bar
_BAR_OTHER = 20  # of 255: how much the image differs from the bar next to it
_BAR_BEYOND_PX = 8  # lines after a bar in which the image must differ from it
_BAR_WHOLE_EDGE = 0.9  # of the line: an object on a plain background touches less of it

Luma = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Bars:
    """The thickness of the bars at the edges, as shares of the width or the height; 0 without one."""

    left: float = 0.0
    top: float = 0.0
    right: float = 0.0
    bottom: float = 0.0

    @property
    def area(self) -> float:
        """The share of the image that the bars at opposite edges cover; a bar at one edge only does not count."""
        across = self.left + self.right if self.left and self.right else 0.0
        down = self.top + self.bottom if self.top and self.bottom else 0.0
        return 1 - (1 - across) * (1 - down)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measurements of an image.

    `sharpness` and `noise`: see `sharpness_of` and `noise_of`; None without contrast. `darkest`: the 1st percentile of
    each pixel's smallest channel, in [0, 1], so that colourful places are not pale; `brightest`: the 99th of its
    largest. `spread`: the largest standard deviation of red, green and blue, of 255. `hash`: the perceptual
    hash, 64 bits. `colours`: uint8, (16, 16, 3), the image reduced to that size. `transparent`: the share of pixels
    that show the background. `is_converted`: whether decoding converts its colours to sRGB. `format`: Pillow's name of
    the file's format.
    """

    sharpness: float | None
    noise: float | None
    darkest: float
    brightest: float
    spread: float
    bars: Bars
    hash: int
    colours: NDArray[np.uint8]
    transparent: float = 0.0
    is_converted: bool = False
    is_animated: bool = False
    format: str = ""


def measure(path: Path, background: Rgb | None = None) -> Measurement:
    """Return the measurements of an image as it is trained: upright, in sRGB, on the background colour.

    The whole file is read and decoded; JPEGs at a reduced scale. Raises BrokenImageError if that fails.
    """
    with open_image(path) as raw:
        file_format = raw.format or ""
        is_animated = raw.format in _ANIMATED_FORMATS and bool(getattr(raw, "is_animated", False))
        scale = min(1.0, SIDE_PX / math.sqrt(raw.width * raw.height))
        raw.draft(None, (math.ceil(raw.width * scale), math.ceil(raw.height * scale)))
        is_converted = changes_colours(raw)
        whole = upright(raw)
        transparent = _transparent_share(whole)
        image = _reduce(flatten(whole, background or WHITE))
    pixels_HWC = np.asarray(image, dtype=np.uint8)
    luma_HW = np.asarray(image.convert("L"), dtype=np.float32)
    tiles = contrasts_and_details(luma_HW)
    some_HWC = pixels_HWC[::2, ::2]
    darkest, brightest = np.percentile(some_HWC.min(axis=2), 1) / 255, np.percentile(some_HWC.max(axis=2), 99) / 255
    return Measurement(
        sharpness_of(*tiles),
        noise_of(*tiles),
        float(darkest),
        float(brightest),
        float(pixels_HWC.std(axis=(0, 1), dtype=np.float32).max()),
        find_bars(pixels_HWC),
        _perceptual_hash(image),
        np.asarray(image.resize((COLOURS_SIDE, COLOURS_SIDE), Image.Resampling.BOX), dtype=np.uint8),
        transparent,
        is_converted,
        is_animated,
        file_format,
    )


def sharpness_of(contrasts_T: Luma, details_T: Luma) -> float | None:
    """Return the sharpness of the sharpest tiles of an image (`contrasts_and_details`); None without contrast.

    It is the variance of the Laplacian over the variance of the luma, so that it does not depend on the contrast; of
    the tiles with contrast, the mean of the sharpest twentieth. Photographs are at 0.4 to 17, and at 0.02 to 0.1 with a
    Gaussian blur of 4 px. (Variance of the Laplacian: Pech-Pacheco et al. 2000.)
    """
    ratios = _ratios(contrasts_T, details_T, least_contrast=_MIN_CONTRAST)
    return float(ratios[: max(1, int(len(ratios) * _SHARPEST))].mean()) if len(ratios) else None


def noise_of(contrasts_T: Luma, details_T: Luma) -> float | None:
    """Return the sharpness of the median tile, far higher for noise than for textures; None without contrast.

    Pixels that are independent of each other have 20, grass 6, a page of text 7.
    """
    ratios = _ratios(contrasts_T, details_T, least_contrast=_MIN_NOISE)
    return float(np.median(ratios)) if len(ratios) else None


def contrasts_and_details(luma_HW: Luma) -> tuple[Luma, Luma]:
    """Return the variances of the luma and of its Laplacian in T tiles of the halved image, (T,); 0 of a tiny one."""
    height, width = (side // 2 * 2 for side in luma_HW.shape)
    if min(height, width) < 8:
        return luma_HW[:0, 0], luma_HW[:0, 0]
    half = luma_HW[:height, :width].reshape(height // 2, 2, width // 2, 2).mean(axis=(1, 3))
    inner = half[1:-1, 1:-1]
    laplacian = 4 * inner - half[:-2, 1:-1] - half[2:, 1:-1] - half[1:-1, :-2] - half[1:-1, 2:]
    return _variances(inner), _variances(laplacian)


def _ratios(contrasts_T: Luma, details_T: Luma, *, least_contrast: float) -> Luma:
    """Return the sharpness of the tiles with contrast, the sharpest first."""
    has_contrast = contrasts_T >= least_contrast**2
    ratios: Luma = np.sort(details_T[has_contrast] / contrasts_T[has_contrast])[::-1]
    return ratios


def _variances(values_HW: Luma) -> Luma:
    """Return the variance in each tile."""
    down, across = (min(_TILE_PX, side) for side in values_HW.shape)
    rows, columns = values_HW.shape[0] // down, values_HW.shape[1] // across
    tiles = values_HW[: rows * down, : columns * across].reshape(rows, down, columns, across)
    variances: Luma = tiles.var(axis=(1, 3)).ravel()
    return variances


def _reduce(image: Image.Image) -> Image.Image:
    scale = SIDE_PX / math.sqrt(image.width * image.height)
    if scale >= 1:
        return image
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.BOX, reducing_gap=2.0)


def _transparent_share(image: Image.Image) -> float:
    if not image.has_transparency_data:
        return 0.0
    opacity = np.asarray(image.convert("RGBA").getchannel("A"))
    return float((opacity < _OPAQUE).mean())


def _perceptual_hash(image: Image.Image) -> int:
    """Return the perceptual hash of an image as 64 bits."""
    import imagehash  # here: it imports SciPy, which no other verb needs

    bits = np.asarray(imagehash.phash(image).hash, dtype=bool).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def find_bars(pixels_HWC: NDArray[np.uint8]) -> Bars:
    """Return the bars of an image, uint8 of shape (H, W, 3).

    A bar is of one colour and ends at once along the whole edge. A plain background does not: an object begins at some
    places before others, and a sky changes little by little.
    """
    height, width = pixels_HWC.shape[:2]
    columns = pixels_HWC.transpose(1, 0, 2)
    return Bars(
        _thickness(columns) / width,
        _thickness(pixels_HWC) / height,
        _thickness(columns[::-1]) / width,
        _thickness(pixels_HWC[::-1]) / height,
    )


def _thickness(lines_LPC: NDArray[np.uint8]) -> int:
    """Return how many lines from the first one on form a bar, which cannot be half of the image or more."""
    colour = np.median(lines_LPC[0], axis=0).astype(np.int16)
    count = 0
    for line in lines_LPC[: len(lines_LPC) // 2]:
        if _share_beyond(line, colour, _BAR_SAME) > _BAR_STRAYS:
            break
        count += 1
    else:
        return 0
    if count == 0:
        return 0
    beyond = lines_LPC[count : count + _BAR_BEYOND_PX].astype(np.int16)
    differs = (np.abs(beyond - colour).max(axis=2) > _BAR_OTHER).any(axis=0)
    return count if differs.mean() >= _BAR_WHOLE_EDGE else 0


def _share_beyond(line_PC: NDArray[np.uint8], colour: NDArray[np.int16], limit: int) -> float:
    return float((np.abs(line_PC.astype(np.int16) - colour).max(axis=1) > limit).mean())
