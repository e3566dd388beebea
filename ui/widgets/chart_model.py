"""What the chart of a run shows: its lines by panes of one unit each, the zoom, and the values at a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trainer.events import RewardMeasured, ValidationFinished
from ui.loop.metric_curves import short_number
from ui.loop.series import EMPTY, PastRun, Series
from ui.loop.wording import loss as loss_words
from ui.widgets.plotting import log_ticks, ticks, weighted_course

Style = Literal["line", "thin", "dashed", "dots"]
_MARGIN = 0.08
_OUTLIER_SHARE = 0.02
_MIN_STEPS = 2.0
PANES: Mapping[str, str] = {
    "loss": "Loss",
    "rate": "Learning rate",
    "reward": "Reward",
    "gradient_norm": "Gradient norm",
}
CURVES: Mapping[str, str] = {
    "loss": "Loss",
    "smoothed": "Smoothed loss",
    "validation": "Validation loss",
    "rate": "Learning rate",
    "reward": "Reward",
    "gradient_norm": "Gradient norm",
}
SHOWN_AT_FIRST = frozenset({"loss", "smoothed", "validation"})
_COLOURS = ("chart_a", "chart_b", "chart_c", "chart_d")  # of earlier runs
_UNITS = ("chart_smooth", "chart_validation", "chart_c", "chart_d")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the chart: the curve that it belongs to, its label, pane and points, and how it is drawn.

    `token` is its colour. `is_of_run` is false for the line of an earlier run.
    """

    curve: str
    label: str
    pane: str
    series: Series
    token: str
    style: Style = "line"
    is_of_run: bool = True


def lines_of(
    series: Mapping[str, Series],
    validations: Sequence[ValidationFinished],
    rewards: Sequence[RewardMeasured],
    past: Sequence[PastRun] = (),
    *,
    unit_labels: Mapping[str, str] | None = None,
) -> tuple[Line, ...]:
    """Return all lines that a run has, in the order of the legend; those of earlier runs last."""
    finite = [v for v in validations if math.isfinite(v.loss)]
    lines = [
        Line("loss", "loss", "loss", series.get("loss", EMPTY), "chart_raw", "thin"),
        Line("smoothed", "smoothed", "loss", series.get("smoothed", EMPTY), "chart_smooth"),
        Line("validation", "validation", "loss", Series((v.step, v.loss) for v in finite), "chart_validation", "dots"),
        Line("validation", "weighted", "loss", Series(weighted_course(finite)), "chart_validation", "dashed"),
        *_rate_lines(series, unit_labels or {}),
        *_reward_lines(series, rewards),
        Line(
            "gradient_norm", "gradient norm", "gradient_norm", series.get("gradient_norm", EMPTY), "chart_raw", "thin"
        ),
    ]
    lines += [
        Line("smoothed", run.name, "loss", run.series.get("smoothed", EMPTY), _COLOURS[number % len(_COLOURS)],
             is_of_run=False)
        for number, run in enumerate(past)
    ]  # fmt: skip
    return tuple(line for line in lines if len(line.series))


def _rate_lines(series: Mapping[str, Series], labels: Mapping[str, str]) -> list[Line]:
    names = [name for name in series if name.partition("/")[0] == "rate"]
    return [
        Line("rate", f"rate {labels.get(unit, unit)}".strip(), "rate", series[name], _UNITS[number % len(_UNITS)])
        for number, (name, unit) in enumerate((n, n.partition("/")[2]) for n in names)
    ]


def _reward_lines(series: Mapping[str, Series], rewards: Sequence[RewardMeasured]) -> list[Line]:
    followed = Series((r.step, r.followed) for r in rewards)
    held_out = Series((r.step, r.held_out) for r in rewards if r.held_out is not None)
    return [
        Line("reward", "rollout reward", "reward", series.get("reward", EMPTY), "chart_raw", "thin"),
        Line("reward", "training reward", "reward", followed, "chart_smooth", "dots"),
        Line("reward", "held-out reward", "reward", held_out, "chart_validation", "dots"),
    ]


def offered(lines: Iterable[Line]) -> list[str]:
    """Return the curves that can be chosen, in the order of the menu."""
    there = {line.curve for line in lines}
    return [name for name in CURVES if name in there]


def shown(lines: Iterable[Line], curves: Iterable[str]) -> tuple[Line, ...]:
    """Return the lines of the chosen curves; the loss where nothing chosen is there."""
    lines, chosen = tuple(lines), set(curves)
    found = tuple(line for line in lines if line.curve in chosen or not line.is_of_run)
    return found or tuple(line for line in lines if line.pane == "loss")


def extent_of(lines: Iterable[Line]) -> tuple[float, float]:
    """Return the first and the last step of lines; one step apart at least."""
    found = [line.series.extent for line in lines]
    low = min((e[0] for e in found if e), default=0.0)
    return low, max(low + 1, *(e[1] for e in found if e)) if any(found) else low + 1


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

    def moved(self, by: float, extent: tuple[float, float]) -> Zoom:
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


@dataclass(slots=True)
class ChartChoices:
    """What the user chose for the chart: the curves, the earlier runs beside it, the scale and the zoom."""

    curves: set[str] = field(default_factory=lambda: set(SHOWN_AT_FIRST))
    past: dict[Path, PastRun] = field(default_factory=dict)
    is_log: bool = False
    zoom: Zoom = Zoom()


@dataclass(frozen=True, slots=True)
class Axis:
    """The axis of a pane: its range and whether it is logarithmic."""

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

    def ticks(self, max_count: int) -> list[float]:
        """Return the values to label."""
        return log_ticks(self.low, self.high, max_count) if self.is_log else ticks(self.low, self.high, max_count)


def axis_of(lines: Sequence[Line], steps: tuple[float, float], *, is_log: bool) -> Axis:
    """Return the axis of a pane for what is seen of its lines: raw values without outliers, all of the others.

    A pane with a value that is not positive is never logarithmic.
    """
    ranges = []
    for line in lines:
        found = line.series.range(*steps, cut=_OUTLIER_SHARE if line.style == "thin" else 0.0)
        ranges += [found] if found else []
    if not ranges:
        return Axis(0.0, 1.0)
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    if is_log and low > 0:
        factor = (high / low) ** _MARGIN if high > low else 2.0
        return Axis(low / factor, high * factor, is_log=True)
    margin = (high - low) * _MARGIN or abs(high) * _MARGIN or 0.5
    return Axis(max(0.0, low - margin) if low >= 0 else low - margin, high + margin)


def values_at(lines: Sequence[Line], step: float) -> list[tuple[str, str]]:
    """Return the values of lines at a step, by label; of a line with few points, only at one of its steps."""
    rows = []
    for line in lines:
        found = line.series.nearest(step)
        if found is None or found[1] is None:
            continue
        is_sparse = line.style in ("dots", "dashed")
        if (is_sparse and found[0] != step) or (not is_sparse and not _covers(line.series, step)):
            continue
        words = loss_words(found[1]) if line.pane == "loss" else short_number(found[1])
        rows.append((line.label, words))
    return rows


def _covers(series: Series, step: float) -> bool:
    extent = series.extent
    return extent is not None and extent[0] <= step <= extent[1]
