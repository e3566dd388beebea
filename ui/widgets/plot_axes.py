"""The axes of a plot: ranges with readable ticks, the zoom into a range, and the measurement nearest to a step."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

MARGIN = 0.08  # at both ends of an axis
_MIN_STEPS = 2.0


def ticks(low: float, high: float, max_count: int) -> list[float]:
    """Return round numbers within a range: multiples of 1, 2 or 5 times a power of ten.

    At most `max_count` of them, or up to five if only one would be left.
    """
    if not high > low or max_count < 1:
        return []
    raw = (high - low) / max_count
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [m * power for m in (10, 5, 2, 1, 0.5, 0.2, 0.1)]
    wide = next(n for n in range(3, -1, -1) if steps[n] >= raw * (1 - 1e-9))
    choices = [_multiples(step, low, high) for step in steps[wide:]]
    return next((choice for choice in choices if len(choice) > 1), choices[0])  # a single tick shows no scale


def log_ticks(low: float, high: float, max_count: int) -> list[float]:
    """Return round numbers within a range of positive values for a logarithmic scale: powers of ten, and 2 and 5 times
    them if there is room. A narrow range has the ticks of a linear scale.
    """
    if not 0 < low < high or max_count < 1:
        return []
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        values = [float(f"{digit}e{power}") for power in powers for digit in digits]
        values = [value for value in values if low <= value <= high]
        if 2 <= len(values) <= max(2, max_count):
            return values
    return values[:: -(-len(values) // max_count)] if len(values) > 1 else ticks(low, high, max_count)


def _multiples(step: float, low: float, high: float) -> list[float]:
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def tick_label(value: float) -> str:
    """Return a short number for a tick: 12k for thousands of steps, no trailing zeros for losses."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


@dataclass(frozen=True, slots=True)
class Axis:
    """The range of an axis, and whether it is logarithmic."""

    low: float
    high: float
    is_log: bool = False

    def share(self, value: float) -> float:
        """Return the place of a value, from 0 to 1 inside the range; values outside are put on the edge."""
        if self.is_log:
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, share))

    def value(self, share: float) -> float:
        """Return the value at a place, which may be outside the range."""
        if self.is_log:
            return self.low * math.exp(share * math.log(self.high / self.low))
        return self.low + share * (self.high - self.low)

    def ticks(self, max_count: int) -> list[float]:
        """Return the values to label."""
        return log_ticks(self.low, self.high, max_count) if self.is_log else ticks(self.low, self.high, max_count)


def padded_axis(values: Sequence[float]) -> Axis:
    """Return the axis of one or more values, with a margin at both ends."""
    low, high = min(values), max(values)
    margin = (high - low) * MARGIN or abs(high) * MARGIN or 0.5
    return Axis(low - margin, high + margin)


@dataclass(frozen=True, slots=True)
class Zoom:
    """The range of steps that is shown; None for the whole run, which grows with it."""

    steps: tuple[float, float] | None = None

    def over(self, extent: tuple[float, float]) -> tuple[float, float]:
        """Return the range to draw."""
        return self.steps or extent

    def at(self, step: float, factor: float, extent: tuple[float, float]) -> Zoom:
        """Return the zoom with the range `factor` times as wide, and `step` where it is."""
        low, high = self.over(extent)
        return self._to(step - (step - low) * factor, step + (high - step) * factor, extent)

    def to(self, one: float, other: float, extent: tuple[float, float]) -> Zoom:
        """Return the zoom to a range, in either direction."""
        return self._to(min(one, other), max(one, other), extent)

    def move(self, by: float, extent: tuple[float, float]) -> Zoom:
        """Return the zoom moved by so many steps, at most to the end of the run."""
        if self.steps is None:
            return self
        low, high = self.steps
        by = min(max(by, extent[0] - low), extent[1] - high) if high - low < extent[1] - extent[0] else 0.0
        return Zoom((low + by, high + by))

    def _to(self, low: float, high: float, extent: tuple[float, float]) -> Zoom:
        if high - low < _MIN_STEPS:
            middle = (low + high) / 2
            low, high = middle - _MIN_STEPS / 2, middle + _MIN_STEPS / 2
        low, high = max(extent[0], low), min(extent[1], high)
        return Zoom() if (low, high) == extent or low >= high else Zoom((low, high))


class AtStep(Protocol):
    """A measurement after a step."""

    @property
    def step(self) -> int:
        """The step."""
        ...


P = TypeVar("P", bound=AtStep)


def nearest(points: Sequence[P], step: float) -> P | None:
    """Return the point with the nearest step; points are in the order of their steps."""
    if not points:
        return None
    index = bisect_left(points, step, key=lambda p: p.step)
    around = points[max(0, index - 1) : index + 1]
    return min(around, key=lambda p: abs(p.step - step))
