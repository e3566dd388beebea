"""The evaluator of the demo model: recognises colours and shape in a generated image and compares them to the prompt.

Torch-free, and without a model: every pixel gets the name of the nearest known colour, and each known shape is fitted
to the figure's mask. An uncertain match counts as "nothing recognised", so that a blurry image fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from demo.make.images import DrawnImage, Scene
from demo.make.shapes import COLOURS, IMAGE_SIZE_PX, KNOWN_SHAPES, PINK, BoolArray, coverage

# The minimum overlap (intersection over union) of a figure with a shape; drawn figures reach 0.9 and more.
_MIN_OVERLAP = 0.72
# The share of a region's pixels that must have the same colour name.
_MIN_GROUND_SHARE = 0.75
_MIN_FIGURE_SHARE = 0.6
# Beyond this RGB distance (0 .. 441) a pixel has no colour name.
_GREATEST_COLOUR_DISTANCE = 75.0
_BORDER_PX = 3
_SMALLEST_FIGURE_PX = 60
_LARGEST_FIGURE_PX = 2800
_MIN_CONTRAST = 50.0

_COLOUR_NAMES = (*COLOURS, "pink")
_COLOUR_VALUES_K3 = np.asarray([*COLOURS.values(), PINK], dtype=np.float64)


@dataclass(frozen=True)
class Seen:
    """What the evaluator recognised; None if uncertain. `overlap` is that of the best shape, 0 to 1."""

    shape: str | None
    colour: str | None
    ground: str | None
    overlap: float


@dataclass(frozen=True)
class Verdict:
    """Whether an image matches its prompt. What the caption leaves open counts as right."""

    colour_right: bool
    ground_right: bool
    shape_right: bool

    @property
    def colours_right(self) -> bool:
        """Whether both colours, the figure's and the ground's, are right."""
        return self.colour_right and self.ground_right


def look_at(image_HWC: DrawnImage) -> Seen:
    """Recognise ground, colour and shape in a 64 x 64 RGB image, uint8 of shape (64, 64, 3).

    Raises ValueError for another size or dtype.
    """
    if image_HWC.shape != (IMAGE_SIZE_PX, IMAGE_SIZE_PX, 3) or image_HWC.dtype != np.uint8:
        raise ValueError(f"The evaluator reads uint8 images of 64 x 64 x 3, got {image_HWC.dtype} {image_HWC.shape}.")
    border_HW = _border_mask()
    ground = _common_name(image_HWC[border_HW], _MIN_GROUND_SHARE)
    figure_HW = _find_figure(image_HWC, border_HW)
    if figure_HW is None:
        return Seen(shape=None, colour=None, ground=ground, overlap=0.0)
    # The edge is a blend of both colours.
    core_HW = _erode(figure_HW)
    colour = _common_name(image_HWC[core_HW if core_HW.any() else figure_HW], _MIN_FIGURE_SHARE)
    shape, overlap = _best_shape(figure_HW)
    return Seen(shape=shape if overlap >= _MIN_OVERLAP else None, colour=colour, ground=ground, overlap=overlap)


def evaluate(image_HWC: DrawnImage, asked: Scene) -> Verdict:
    """Return whether an image, uint8 (64, 64, 3), shows the requested scene; a zog is a pink ring."""
    seen = look_at(image_HWC)
    return Verdict(
        colour_right=asked.colour is None or seen.colour == asked.colour,
        ground_right=asked.ground is None or seen.ground == asked.ground,
        shape_right=seen.shape == asked.shape,
    )


def _common_name(pixels_N3: npt.NDArray[np.uint8], least_share: float) -> str | None:
    """Return the colour name of at least `least_share` of the pixels, or None."""
    distances_NK = np.linalg.norm(pixels_N3[:, None, :].astype(np.float64) - _COLOUR_VALUES_K3, axis=2)
    nearest_N = distances_NK.argmin(axis=1)
    nearest_N = nearest_N[distances_NK.min(axis=1) <= _GREATEST_COLOUR_DISTANCE]
    counts_K = np.bincount(nearest_N, minlength=len(_COLOUR_NAMES))
    best = int(counts_K.argmax())
    return _COLOUR_NAMES[best] if counts_K[best] >= least_share * len(pixels_N3) else None


def _find_figure(image_HWC: DrawnImage, border_HW: BoolArray) -> BoolArray | None:
    """Return the mask of the figure: pixels nearer to its colour than to the ground's."""
    pixels_HWC = image_HWC.astype(np.float64)
    ground_C = np.median(pixels_HWC[border_HW], axis=0)
    distance_HW = np.linalg.norm(pixels_HWC - ground_C, axis=2)
    contrast = float(np.percentile(distance_HW, 97))
    if contrast < _MIN_CONTRAST:
        return None
    figure_C = np.median(pixels_HWC[distance_HW > 0.7 * contrast], axis=0)
    figure_HW: BoolArray = np.linalg.norm(pixels_HWC - figure_C, axis=2) < distance_HW
    return figure_HW if _SMALLEST_FIGURE_PX <= figure_HW.sum() <= _LARGEST_FIGURE_PX else None


def _best_shape(figure_HW: BoolArray) -> tuple[str, float]:
    """Return the known shape that covers the figure best, and its intersection over union.

    Each shape is placed at the figure's centre of mass with the figure's area, and shifted and scaled a little.
    """
    rows_N, columns_N = np.nonzero(figure_HW)
    overlaps = {}
    for shape in KNOWN_SHAPES:
        area, centre_u, centre_v = _proportions(shape)
        radius_px = float(np.sqrt(len(rows_N) / area))
        centre_px = (columns_N.mean() + 0.5 - centre_u * radius_px, rows_N.mean() + 0.5 - centre_v * radius_px)
        overlaps[shape] = max(
            _overlap(figure_HW, shape, (centre_px[0] + shift_x, centre_px[1] + shift_y), radius_px * scale)
            for scale in (0.94, 1.0, 1.06)
            for shift_x in (-1.0, 0.0, 1.0)
            for shift_y in (-1.0, 0.0, 1.0)
        )
    best = max(overlaps, key=lambda shape: overlaps[shape])
    return best, overlaps[best]


@cache
def _proportions(shape: str) -> tuple[float, float, float]:
    """Return a shape's area in squared radii and its centre of mass (u, v) in radii."""
    radius_px = 100.0
    mask_HW = coverage(shape, centre_px=(128.0, 128.0), radius_px=radius_px, size_px=256, samples=1) > 0.5
    rows_N, columns_N = np.nonzero(mask_HW)
    centre_u = (columns_N.mean() + 0.5 - 128.0) / radius_px
    centre_v = (rows_N.mean() + 0.5 - 128.0) / radius_px
    return len(rows_N) / radius_px**2, float(centre_u), float(centre_v)


def _overlap(figure_HW: BoolArray, shape: str, centre_px: tuple[float, float], radius_px: float) -> float:
    """Return the intersection over union of the figure and a shape placed on it, 0 to 1."""
    shape_HW = coverage(shape, centre_px=centre_px, radius_px=radius_px, samples=1) > 0.5
    union = int((figure_HW | shape_HW).sum())
    return float((figure_HW & shape_HW).sum() / union) if union else 0.0


def _erode(mask_HW: BoolArray) -> BoolArray:
    """Return the mask without the pixels that have a neighbour (up, down, left or right) outside it."""
    padded = np.pad(mask_HW, 1)
    inner: BoolArray = mask_HW & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return inner


def _border_mask() -> BoolArray:
    mask_HW = np.ones((IMAGE_SIZE_PX, IMAGE_SIZE_PX), dtype=np.bool_)
    mask_HW[_BORDER_PX:-_BORDER_PX, _BORDER_PX:-_BORDER_PX] = False
    return mask_HW
