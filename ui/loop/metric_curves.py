"""The curves of the metrics that a method reports in addition to its loss: a thinned course for each reported name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from modules.families.registry import FAMILIES
from modules.objectives.metrics import METRICS, Metric, metric_of
from trainer.wording import reward_label

if TYPE_CHECKING:
    from trainer.events import StepFinished

MAX_METRIC_POINTS = 256
_MIN_SMOOTHED = 16  # fewer points are a readable line as they are
_SMOOTHED_SHARE = 0.1

Point = tuple[int, float]


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """Steps and values, thinned: when full, every second point is dropped and the stride doubles.

    Points are counted, not their steps: a method may report a value only at every second step.
    """

    points: tuple[Point, ...] = ()
    stride: int = 1
    num_added: int = 0

    def add(self, step: int, value: float) -> MetricCurve:
        """Return the curve with one more point; the newest point is always the last."""
        points = self.points
        if points and ((self.num_added - 1) % self.stride or step <= points[-1][0]):
            points = points[:-1]
        points = (*points, (step, value))
        if len(points) <= MAX_METRIC_POINTS:
            return MetricCurve(points, self.stride, self.num_added + 1)
        return MetricCurve(points[::2], self.stride * 2, self.num_added + 1)


Curves = Mapping[str, MetricCurve]


def with_metrics(curves: Curves, step: int, metrics: Mapping[str, float]) -> Curves:
    """Return the curves with the values of a step; unknown names and values that are not finite are left out."""
    added = {
        name: curves.get(name, MetricCurve()).add(step, value)
        for name, value in metrics.items()
        if metric_of(name) is not None and math.isfinite(value)
    }
    return {**curves, **added} if added else curves


def gradient_norms(step: StepFinished) -> dict[str, float]:
    """Return the gradient norms of a step as metrics: of all weights, and of each trained part."""
    of_all = {} if step.gradient_norm is None else {"gradient_norm": step.gradient_norm}
    return {**of_all, **{f"gradient_norm/{unit}": norm for unit, norm in step.gradient_norms.items()}}


def rate_metrics(effective_rates: Mapping[str, float]) -> dict[str, float]:
    """Return effective learning rates by unit as metrics: a single one if all units have the same rate."""
    rates = set(effective_rates.values())
    if len(rates) == 1:
        return {"effective_rate": rates.pop()}
    return {f"effective_rate/{unit}": rate for unit, rate in effective_rates.items()}


def join_curves(before: Curves, now: Curves) -> Curves:
    """Return the curves of a resumed run, preceded by its history."""
    curves = dict(before)
    for name, curve in now.items():
        joined = curves.get(name, MetricCurve())
        for step, value in curve.points:
            joined = joined.add(step, value)
        curves[name] = joined
    return curves


def shown_names(curves: Curves) -> list[str]:
    """Return the names to show: in the order of their records, without the only reward model's, which is the reward."""
    order = {name: number for number, name in enumerate(METRICS)}
    names = sorted(curves, key=lambda name: (order[name.partition("/")[0]], name))
    below = [name for name in names if "/" in name]
    only = [name for name in below if sum(_parent(other) == _parent(name) for other in below) == 1]
    return [name for name in names if not (name in only and _parent(name) in curves)]


def has_method_metrics(curves: Curves) -> bool:
    """Return whether any curve is one of the method's own, which shows more than the loss."""
    return any((metric := metric_of(name)) is not None and metric.is_of_method for name in curves)


def metric_label(name: str) -> str:
    """Return the label of a reported name: "Reward: PickScore" for "reward/pickscore"."""
    metric, below = metric_of(name), name.partition("/")[2]
    label = metric.label if metric else name
    return f"{label}: {_part_labels().get(below) or reward_label(below)}" if below else label


def metric_tip(name: str, curve: MetricCurve) -> str:
    """Return the meaning of a curve, the direction in which a run goes well, and its range so far."""
    metric = metric_of(name)
    values = [value for _, value in curve.points]
    lines = [metric.help, _direction(metric)] if metric else []
    if values:
        lines.append(f"So far {short_number(min(values))} to {short_number(max(values))}.")
    return "\n".join(line for line in lines if line)


def _direction(metric: Metric) -> str:
    advice = {"high": "Higher is better.", "low": "Should stay low.", "steady": "Should stay steady."}[metric.better]
    if metric.limits is None:
        return advice
    low, high = metric.limits
    return f"{advice} Always between {low:g} and {high:g}."


def smooth(points: Sequence[Point]) -> list[Point]:
    """Return the moving average of a long course (over a tenth of it, from its past); empty for a short one."""
    if len(points) < _MIN_SMOOTHED:
        return []
    weight = 1 / max(1.0, len(points) * _SMOOTHED_SHARE)
    mean, course = points[0][1], []
    for number, (step, value) in enumerate(points):
        mean += max(weight, 1 / (number + 1)) * (value - mean)
        course.append((step, mean))
    return course


def short_number(value: float) -> str:
    """Return a value in three digits: 0.712, 21.4, 3.1e-5."""
    if value == 0:
        return "0"
    return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e")


def _parent(name: str) -> str:
    return name.partition("/")[0]


@cache
def _part_labels() -> Mapping[str, str]:
    return {part.name: part.label for family in reversed(list(FAMILIES.values())) for part in family.parts}
