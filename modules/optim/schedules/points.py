"""Points that the user sets, with lines or smooth curves between them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Literal

from modules.optim.schedule_spec import Position, ScheduleSettings, ScheduleSpec
from modules.settings.field import Setting
from modules.system.problem import Problem, quote

_MAX_POINTS = 200
_MAX_FACTOR = 1000.0
_EXAMPLE = "0:1, 0.5:0.3, 1:0"


class Points(ScheduleSettings):
    """Points of the run with their factors on the learning rate, joined by lines, smooth curves or steps."""

    name: Literal["points"] = "points"
    points: Annotated[
        str,
        Setting(
            "Points",
            "Pairs of progress (0 to 1, after the warm-up) and factor on the learning rate, separated by commas, for "
            f"example {_EXAMPLE}. Before the first point and after the last, its factor holds.",
        ),
    ] = _EXAMPLE
    between: Annotated[
        Literal["linear", "smooth", "hold"],
        Setting(
            "Between points",
            "How the factor changes from one point to the next.",
            choice_labels={"linear": "A straight line", "smooth": "A smooth curve", "hold": "A step at the next point"},
        ),
    ] = "linear"


@lru_cache(maxsize=64)
def _parse_points(text: str) -> tuple[tuple[float, float], ...]:
    """Return the points. Raises ValueError for a text that is not a list of points in ascending order."""
    points: list[tuple[float, float]] = []
    for entry in filter(None, map(str.strip, text.split(",")[: _MAX_POINTS + 1])):
        progress, _, factor = entry.partition(":")
        try:
            point = float(progress), float(factor)
        except ValueError as error:
            raise ValueError(f"{quote(entry)} should be two numbers, progress:factor") from error
        if not 0 <= point[0] <= 1 or not 0 <= point[1] <= _MAX_FACTOR:
            raise ValueError(f"{quote(entry)} should have a progress from 0 to 1 and a factor from 0 to 1,000")
        points.append(point)
    if not points:
        raise ValueError("there are no points")
    if len(points) > _MAX_POINTS:
        raise ValueError(f"there are more than {_MAX_POINTS} points")
    for before, after in pairwise(points):
        if after[0] <= before[0]:
            raise ValueError(f"the progress {after[0]:g} should come after {before[0]:g}")
    return tuple(points)


def _curve(settings: Points, at: Position) -> float:
    points = _parse_points(settings.points)
    place = bisect_right([progress for progress, _ in points], at.progress)
    if place in (0, len(points)) or settings.between == "hold":
        return points[max(0, place - 1)][1]
    (start, low), (end, high) = points[place - 1], points[place]
    share = (at.progress - start) / (end - start)
    if settings.between == "smooth":  # half a cosine: level at each point, and never beyond the points
        share = (1.0 - math.cos(math.pi * share)) / 2.0
    return low + (high - low) * share


def _problems(settings: Points) -> Iterator[Problem]:
    try:
        _parse_points(settings.points)
    except ValueError as error:
        yield Problem("points", f"The points are not valid: {error}.", advice=f"An example: {_EXAMPLE}")


POINTS = ScheduleSpec(settings=Points, label="Points", curve=_curve, problems=_problems)
