"""A curve of a run: values at increasing steps, all of them kept, drawn with two points for each pixel."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Point = tuple[float, float]


class Series:
    """Steps and values. `add` returns another series; the memory behind both is shared, so that adding is cheap.

    A value that is not finite is a gap.
    """

    __slots__ = ("_length", "_steps", "_values")

    def __init__(self, points: Iterable[tuple[float, float | None]] = ()) -> None:
        self._steps = array("d")
        self._values = array("d")
        for step, value in points:
            self._append(step, value)
        self._length = len(self._steps)

    def __len__(self) -> int:
        """Return the number of steps, those without a value included."""
        return self._length

    def __iter__(self) -> Iterator[tuple[float, float | None]]:
        """Yield each step with its value, None for a gap."""
        for index in range(self._length):
            value = self._values[index]
            yield self._steps[index], value if math.isfinite(value) else None

    def add(self, step: float, value: float | None) -> Series:
        """Return the series with one more point. Points at this step and after it are dropped first."""
        kept = self._length
        while kept and self._steps[kept - 1] >= step:
            kept -= 1
        longer = Series.__new__(Series)
        if kept == len(self._steps):  # no other series has added anything
            longer._steps, longer._values = self._steps, self._values
        else:
            longer._steps, longer._values = self._steps[:kept], self._values[:kept]
        longer._append(step, value)
        longer._length = kept + 1
        return longer

    def finite_points(self) -> NDArray[np.float64]:
        """Return the steps that have a value, and their values: (N, 2)."""
        import numpy as np

        columns = self._steps[: self._length], self._values[: self._length]
        points: NDArray[np.float64] = np.column_stack(columns)
        return points[np.isfinite(points[:, 1])]

    @property
    def extent(self) -> tuple[float, float] | None:
        """The first and the last step; None for an empty series."""
        return (self._steps[0], self._steps[self._length - 1]) if self._length else None

    def nearest(self, step: float) -> tuple[float, float | None] | None:
        """Return the step nearest to a step, and its value; None for an empty series."""
        if not self._length:
            return None
        index = bisect_left(self._steps, step, hi=self._length)
        around = [i for i in (index - 1, index) if 0 <= i < self._length]
        best = min(around, key=lambda i: abs(self._steps[i] - step))
        value = self._values[best]
        return self._steps[best], value if math.isfinite(value) else None

    def inside(self, low: float, high: float) -> int:
        """Return the number of steps from `low` to `high`."""
        return bisect_right(self._steps, high, hi=self._length) - bisect_left(self._steps, low, hi=self._length)

    def range(self, low: float, high: float, *, cut: float = 0.0) -> Point | None:
        """Return the least and the greatest value from step `low` to `high`, without the share `cut` at both ends.

        None if there is no value.
        """
        import numpy as np

        first, last = bisect_left(self._steps, low, hi=self._length), bisect_right(self._steps, high, hi=self._length)
        values = np.frombuffer(self._values, count=last)[first:] if last else np.empty(0)
        values = values[np.isfinite(values)]
        if not len(values):
            return None
        num_cut = int(len(values) * cut)
        if num_cut:
            values = np.partition(values, (num_cut, len(values) - 1 - num_cut))
            return float(values[num_cut]), float(values[len(values) - 1 - num_cut])
        return float(values.min()), float(values.max())

    def points_to_draw(self, low: float, high: float, num_columns: int) -> list[Point]:
        """Return the points to draw from step `low` to `high`: of many, the least and the greatest of each column.

        The points next to the range are included, so that the line reaches both edges.
        """
        first = max(0, bisect_left(self._steps, low, hi=self._length) - 1)
        last = min(self._length, bisect_right(self._steps, high, hi=self._length) + 1)
        if last - first <= 2 * num_columns:
            points = zip(self._steps[first:last], self._values[first:last], strict=True)
            return [(step, value) for step, value in points if math.isfinite(value)]
        return self._thin(first, last, low, (high - low) / num_columns)

    def _thin(self, first: int, last: int, low: float, column_steps: float) -> list[Point]:
        import numpy as np

        steps = np.frombuffer(self._steps, count=last)[first:]
        values = np.frombuffer(self._values, count=last)[first:]
        is_finite = np.isfinite(values)
        steps, values = steps[is_finite], values[is_finite]
        if not len(steps):
            return []
        columns = np.floor((steps - low) / column_steps)
        starts = np.flatnonzero(np.diff(columns, prepend=columns[0] - 1))
        lows, highs = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
        points: list[Point] = []
        # Up in one column and down in the next: the line crosses each pixel once.
        for number, (step, least, most) in enumerate(
            zip(steps[starts].tolist(), lows.tolist(), highs.tolist(), strict=True)
        ):
            pair = (least, most) if number % 2 else (most, least)
            points += [(step, pair[0])] if least == most else [(step, pair[0]), (step, pair[1])]
        points.append((float(steps[-1]), float(values[-1])))
        return points

    def _append(self, step: float, value: float | None) -> None:
        self._steps.append(step)
        self._values.append(value if value is not None and math.isfinite(value) else math.nan)


EMPTY = Series()
SeriesByName = dict[str, Series]


@dataclass(frozen=True, slots=True)
class PastRun:
    """The curves of an earlier run, by name."""

    name: str
    series: Mapping[str, Series] = field(default_factory=dict)


def with_values(series: SeriesByName, step: float, values: Iterable[tuple[str, float | None]]) -> SeriesByName:
    """Return the series with one more value each."""
    return {**series, **{name: series.get(name, EMPTY).add(step, value) for name, value in values}}


def join_series(before: SeriesByName, now: SeriesByName) -> SeriesByName:
    """Return the series of a resumed run, preceded by its history."""
    joined = dict(before)
    for name, newer in now.items():
        series = joined.get(name, EMPTY)
        for step, value in newer:
            series = series.add(step, value)
        joined[name] = series
    return joined
