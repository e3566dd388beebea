"""Types that settings of several packages share.

The types of numbers have their range in them: `Annotated[Fraction, Setting("Strength", "...")]` is from 0 to 1.

A resolution is the side of a square, or one size for all images as a text such as "1024x768".
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator

from modules.system.problem import quote

Fraction = Annotated[float, Ge(0), Le(1)]
PositiveFraction = Annotated[float, Gt(0), Le(1)]
Decay = Annotated[float, Ge(0), Lt(1)]
"""The decay of a running average per step: 0 keeps nothing of earlier steps, and 1 would never add a new one."""
Dropout = Annotated[float, Ge(0), Lt(1)]
"""The probability that something is left out: with 1 nothing would remain."""
UpTo100 = Annotated[float, Ge(0), Le(100)]
UpTo1000 = Annotated[float, Ge(0), Le(1000)]
CountTo1000 = Annotated[int, Ge(1), Le(1000)]

LOWEST_PX, HIGHEST_PX = 32, 8192

_SIZE = re.compile(r"\s*(\d{1,5})\s*[xX\u00d7]\s*(\d{1,5})\s*")


def _check_resolution(value: int | str) -> int | str:
    """Return a resolution, with a size in the form "1024x768". Raises ValueError for anything else."""
    sides = sides_of(value)
    if not all(LOWEST_PX <= side <= HIGHEST_PX for side in sides):
        raise ValueError(f"{quote(value)} should have sides of at least {LOWEST_PX} and at most {HIGHEST_PX:,} px")
    return value if isinstance(value, int) else f"{sides[0]}x{sides[1]}"


Resolution = Annotated[int | str, AfterValidator(_check_resolution)]


def sides_of(resolution: int | str) -> tuple[int, int]:
    """Return the width and the height in pixels. Raises ValueError for a text that is not a size like 1024x768."""
    if isinstance(resolution, int):
        return resolution, resolution
    match = _SIZE.fullmatch(resolution)
    if match is None:
        raise ValueError(f"{quote(resolution)} is not a resolution such as 512 or 1024x768")
    return int(match[1]), int(match[2])


def side_of(resolution: int | str) -> int:
    """Return the side in pixels of the square with the resolution's area."""
    return round(math.sqrt(math.prod(sides_of(resolution))))


# What is computed again. "transformer": the transformer blocks; "selective": every block, except its attention and its
# products of long vectors, whose results are kept; "block": every block; "whole": the whole part; "auto": as few blocks
# as the free memory allows, chosen at the start of a run.
CheckpointMode = Literal["off", "auto", "selective", "transformer", "block", "whole"]

MIN_KEPT_LENGTH = 64  # "selective" keeps the result of a product of vectors at least as long
