"""The arithmetic of the loss chart: ranges, readable ticks, the nearest point."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol, TypeVar

from trainer.events import ValidationFinished

_MARGIN = 0.08
_SAME_SHARE = 1e-6


class AtStep(Protocol):
    """A measurement after a step."""

    @property
    def step(self) -> int:
        """The step."""
        ...


P = TypeVar("P", bound=AtStep)


def ticks(low: float, high: float, max_count: int) -> list[float]:
    """Return round numbers within a range: multiples of 1, 2 or 5 times a power of ten.

    At most `most` of them, or up to five if only one would be left.
    """
    if not high > low or max_count < 1:
        return []
    raw = (high - low) / max_count
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [m * power for m in (10, 5, 2, 1, 0.5, 0.2, 0.1)]
    wide = next(n for n in range(3, -1, -1) if steps[n] >= raw * (1 - 1e-9))
    choices = [_multiples(step, low, high) for step in steps[wide:]]
    return next((found for found in choices if len(found) > 1), choices[0])  # a single tick shows no scale


def log_ticks(low: float, high: float, max_count: int) -> list[float]:
    """Return round numbers within a range of positive values for a logarithmic scale: powers of ten, and 2 and 5 times
    them where there is room. A narrow range has those of a linear scale.
    """
    if not 0 < low < high or max_count < 1:
        return []
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        found = [float(f"{digit}e{power}") for power in powers for digit in digits]
        found = [value for value in found if low <= value <= high]
        if 2 <= len(found) <= max(2, max_count):
            return found
    return found[:: -(-len(found) // max_count)] if len(found) > 1 else ticks(low, high, max_count)


def _multiples(step: float, low: float, high: float) -> list[float]:
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def tick_label(value: float) -> str:
    """Return a short number for a tick: 1.2k for thousands of steps, no trailing zeros for losses."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


def course_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the axis range of one or more values, with a margin at both ends."""
    low, high = min(values), max(values)
    margin = (high - low) * _MARGIN or abs(high) * _MARGIN or 0.5
    return low - margin, high + margin


def weighted_course(validations: Sequence[ValidationFinished]) -> list[tuple[int, float]]:
    """Return steps and validation losses with the training's loss weights; empty if equal to the plain loss."""
    course = [(v, v.weighted_loss) for v in validations]
    weighted = [(v, w) for v, w in course if w is not None and math.isfinite(w)]
    if all(abs(w - v.loss) <= _SAME_SHARE * abs(v.loss) for v, w in weighted):
        return []
    return [(v.step, w) for v, w in weighted]


def nearest(points: Sequence[P], step: float) -> P | None:
    """Return the point with the nearest step; points are in the order of their steps."""
    if not points:
        return None
    index = bisect_left(points, step, key=lambda p: p.step)
    around = points[max(0, index - 1) : index + 1]
    return min(around, key=lambda p: abs(p.step - step))
