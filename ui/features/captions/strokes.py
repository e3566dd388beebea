"""The mask tools: the coverage of a brush stroke, and the area of a fill."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modules.data.transforms.geometry import Box
from modules.data.transforms.masks import Mask

Point = tuple[float, float]
Area = NDArray[np.bool_]
_MIDDLE = 128  # of the values of a mask: a fill stays on the side that it starts on


@dataclass(frozen=True, slots=True)
class Brush:
    """A round brush: the value it draws, its radius in pixels of the mask, and its opacity from 0 to 1."""

    value: int
    radius_px: float
    opacity: float = 1.0


def line_box(start: Point, end: Point, radius_px: float, mask: Mask) -> Box:
    """Return the part of a mask that a line of a brush touches; it may be empty."""
    reach = radius_px + 1
    height, width = mask.shape
    left, right = min(start[0], end[0]) - reach, max(start[0], end[0]) + reach
    top, bottom = min(start[1], end[1]) - reach, max(start[1], end[1]) + reach
    left_px, top_px = min(width, max(0, int(left))), min(height, max(0, int(top)))
    return Box(left_px, top_px, min(width, max(left_px, int(right) + 1)), min(height, max(top_px, int(bottom) + 1)))


def line_coverage(start: Point, end: Point, radius_px: float, box: Box) -> NDArray[np.uint8]:
    """Return how much of each pixel of a box a line with round ends covers, from 0 to 255, with smooth edges."""
    xs = np.arange(box.left_px, box.right_px, dtype=np.float32)[None, :] + 0.5
    ys = np.arange(box.top_px, box.bottom_px, dtype=np.float32)[:, None] + 0.5
    across, down = np.float32(end[0] - start[0]), np.float32(end[1] - start[1])
    length2 = across**2 + down**2
    if length2 > 0:
        along = np.clip(((xs - start[0]) * across + (ys - start[1]) * down) / length2, 0, 1)
        distance = np.hypot(xs - start[0] - along * across, ys - start[1] - along * down)
    else:
        distance = np.hypot(xs - start[0], ys - start[1])
    return (np.clip(radius_px + 0.5 - distance, 0, 1) * 255 + 0.5).astype(np.uint8)


def mix_stroke(before: Mask, value: int, coverage: NDArray[np.uint8], opacity: float) -> Mask:
    """Return the values of a mask under a brush stroke, given its coverage and opacity."""
    share = coverage.astype(np.float32) * (opacity / 255)
    return (before + (value - before.astype(np.float32)) * share + 0.5).astype(np.uint8)


def area_around(mask: Mask, x: int, y: int) -> Area:
    """Return the connected area around a pixel that is on the same side of middle gray as it; 4-connected."""
    is_white = mask >= _MIDDLE
    free = is_white if is_white[y, x] else ~is_white
    height, width = mask.shape
    area = np.zeros(mask.shape, np.bool_)
    pending = [(x, y)]
    while pending:
        x, y = pending.pop()
        if area[y, x]:
            continue
        left, right = _span(free[y], x, width)
        area[y, left:right] = True
        for row in (y - 1, y + 1):
            if 0 <= row < height:
                open_here = free[row, left:right] & ~area[row, left:right]
                starts = np.flatnonzero(open_here[1:] & ~open_here[:-1]) + left + 1
                if open_here[0]:
                    pending.append((left, row))
                pending.extend((int(start), row) for start in starts)
    return area


def _span(row: Area, x: int, width: int) -> tuple[int, int]:
    """Return the ends of the free pixels around x in a row."""
    left_walls, right_walls = row[:x][::-1], row[x:]
    to_left = int(np.argmin(left_walls)) if x and not left_walls.all() else x
    to_right = int(np.argmin(right_walls)) if not right_walls.all() else width - x
    return x - to_left, x + to_right


def box_of(area: Area) -> Box:
    """Return the box around an area that is not empty."""
    rows, columns = np.flatnonzero(area.any(axis=1)), np.flatnonzero(area.any(axis=0))
    return Box(int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
