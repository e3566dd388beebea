"""Bars of one colour at the edges of an image: letterbox (above and below) and pillarbox (left and right)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SAME = 12  # of 255: compression moves the colour of a bar by less
_STRAYS = 0.02  # of a line: pixels of another colour that still belong to a bar
_OTHER = 20  # of 255: how much the image differs from the bar beside it
_BEYOND_PX = 8  # lines after a bar in which the image must differ from it
_WHOLE_EDGE = 0.9  # of the line: an object on a plain background touches less of it


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
    """Return how many lines, from the first one on, form a bar. It cannot be half of the image or more."""
    colour = np.median(lines_LPC[0], axis=0).astype(np.int16)
    count = 0
    for line in lines_LPC[: len(lines_LPC) // 2]:
        if _share_beyond(line, colour, _SAME) > _STRAYS:
            break
        count += 1
    else:
        return 0
    if count == 0:
        return 0
    beyond = lines_LPC[count : count + _BEYOND_PX].astype(np.int16)
    differs = (np.abs(beyond - colour).max(axis=2) > _OTHER).any(axis=0)
    return count if differs.mean() >= _WHOLE_EDGE else 0


def _share_beyond(line_PC: NDArray[np.uint8], colour: NDArray[np.int16], limit: int) -> float:
    return float((np.abs(line_PC.astype(np.int16) - colour).max(axis=1) > limit).mean())
