"""Rotations of a crop inside its image: how much room they need. Pure numbers, torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass

_EDGE_PX = 2  # rounding of the window's position, and the reach of the bicubic filter


@dataclass(frozen=True, slots=True)
class Angles:
    """The rotations that an image may get: by `lowest` to `highest` degrees, 0 or more, in both directions."""

    lowest: float = 0.0
    highest: float = 0.0

    @property
    def edge_px(self) -> int:
        """The room that is needed at each side of the rotated crop."""
        return edge_of(self.highest) if self.lowest == self.highest else _EDGE_PX

    def extent(self, sides: tuple[float, float]) -> tuple[float, float]:
        """Return the largest width and the largest height of the rectangle around a rotated one with these sides."""
        peak = math.degrees(math.atan2(sides[1], sides[0]))  # the angle at which it is widest; the highest at 90 - peak
        peaks = (turn + p for turn in range(0, 541, 180) for p in (peak, -peak, 90 - peak, 90 + peak))
        angles = [self.lowest, self.highest, *(p for p in peaks if self.lowest < p < self.highest)]
        widths, heights = zip(*(rotated_extent(sides, angle) for angle in angles), strict=True)
        return max(widths), max(heights)


NO_ROTATION = Angles()


def edge_of(degrees: float) -> int:
    """Return the room in pixels that is needed at each side of a crop rotated by an angle; none for quarter turns."""
    return 0 if degrees % 90 == 0 else _EDGE_PX


def rotated_extent(sides: tuple[float, float], degrees: float) -> tuple[float, float]:
    """Return the width and the height of the rectangle around a rotated one with these sides."""
    cosine, sine = (abs(part) for part in direction(degrees))
    width, height = sides
    return width * cosine + height * sine, width * sine + height * cosine


def direction(degrees: float) -> tuple[float, float]:
    """Return the cosine and the sine of an angle; quarter turns are exact."""
    if degrees % 90 == 0:
        return ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))[round(degrees / 90) % 4]
    radians = math.radians(degrees)
    return math.cos(radians), math.sin(radians)
