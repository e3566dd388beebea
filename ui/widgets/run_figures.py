"""The figures of a run: its lines by panes of one unit each, its rewards, and the values at a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from trainer.events import RewardMeasured, ValidationFinished
from trainer.wording import format_loss as loss_words
from trainer.wording import part_label, reward_line
from ui.loop.metric_curves import short_number
from ui.loop.series import EMPTY, PastRun, Series
from ui.loop.wording import concept_rows, reward_rows, timestep_rows
from ui.widgets.plot_axes import Zoom, nearest
from ui.widgets.plot_model import STYLES, TWO_SCALES, Column, Figure, Line, Readout, Ring

_SAME_SHARE = 1e-6
NOTHING_YET = "The loss appears here once training has started."
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


def lines_of(
    series: Mapping[str, Series],
    validations: Sequence[ValidationFinished],
    rewards: Sequence[RewardMeasured],
    past: Sequence[PastRun] = (),
    *,
    unit_labels: Mapping[str, str] | None = None,
) -> tuple[Line, ...]:
    """Return all lines that a run has, in the order of the legend; the lines of earlier runs last."""
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
        Line("rate", f"rate {part_label(unit, labels)}".strip(), "rate", series[name], _UNITS[number % len(_UNITS)])
        for number, (name, unit) in enumerate((n, n.partition("/")[2]) for n in names)
    ]


def _reward_lines(series: Mapping[str, Series], rewards: Sequence[RewardMeasured]) -> list[Line]:
    followed, held_out = _reward_series(rewards)
    return [
        Line("reward", "rollout reward", "reward", series.get("reward", EMPTY), "chart_raw", "thin"),
        Line("reward", "training reward", "reward", followed, "chart_smooth", "dots"),
        Line("reward", "held-out reward", "reward", held_out, "chart_validation", "dots"),
    ]


def _reward_series(rewards: Sequence[RewardMeasured]) -> tuple[Series, Series]:
    """Return the training rewards and the held-out rewards by step."""
    followed = Series((r.step, r.followed) for r in rewards)
    return followed, Series((r.step, r.held_out) for r in rewards if r.held_out is not None)


def weighted_course(validations: Sequence[ValidationFinished]) -> list[tuple[int, float]]:
    """Return steps and validation losses with the training's loss weights; empty if equal to the plain loss."""
    course = [(v, v.weighted_loss) for v in validations]
    weighted = [(v, w) for v, w in course if w is not None and math.isfinite(w)]
    if all(abs(w - v.loss) <= _SAME_SHARE * abs(v.loss) for v, w in weighted):
        return []
    return [(v.step, w) for v, w in weighted]


def offered_curves(lines: Iterable[Line]) -> list[str]:
    """Return the curves that can be chosen, in the order of the menu."""
    there = {line.curve for line in lines}
    return [name for name in CURVES if name in there]


def shown_lines(lines: Iterable[Line], curves: Iterable[str]) -> tuple[Line, ...]:
    """Return the lines of the chosen curves; the loss if the run has none of the chosen ones."""
    lines, chosen = tuple(lines), set(curves)
    some = tuple(line for line in lines if line.curve in chosen or not line.is_of_run)
    return some or tuple(line for line in lines if line.pane == "loss")


@dataclass(slots=True)
class ChartChoices:
    """The user's choices for the chart: the curves, the earlier runs in it, the scale and the zoom."""

    curves: set[str] = field(default_factory=lambda: set(SHOWN_AT_FIRST))
    past: dict[Path, PastRun] = field(default_factory=dict)
    is_log: bool = False
    zoom: Zoom = field(default_factory=Zoom)


def run_figure(lines: Iterable[Line], validations: Iterable[ValidationFinished] = ()) -> Figure:
    """Return the figure of lines, with a ring around the best validation; validations add details to the readout."""
    lines, finite = tuple(lines), [v for v in validations if math.isfinite(v.loss)]
    best = next((v for v in finite if v.step == finite[-1].best_step), None)
    has_validation = any(line.label == "validation" for line in lines)
    return Figure(
        lines=lines,
        panes=tuple(PANES),
        ring=Ring(float(best.step), best.loss, "best") if best is not None and has_validation else None,
        readout=partial(_run_readout, lines, finite),
        empty_text=NOTHING_YET,
    )


def _run_readout(
    lines: Sequence[Line], validations: Sequence[ValidationFinished], at: float, near: float
) -> Readout | None:
    """Return the values of all lines at a step; it snaps to a nearby validation, which has more to tell."""
    validation = nearest(validations, at)
    if validation is not None and abs(validation.step - at) <= near:
        step = float(validation.step)
    else:
        validation = None
        steps = [point[0] for line in lines if (point := line.series.nearest(at))]
        if not steps:
            return None
        step = min(steps, key=lambda s: abs(s - at))
    columns = [Column("curve", values_at(lines, step))]
    if validation is not None:
        is_best = validation.step == validations[-1].best_step
        columns += [
            Column("best validation" if is_best else "validation", concept_rows(validation)),
            Column("at timestep", timestep_rows(validation)),
        ]
    return Readout(step, f"Step {step:,.0f}", [c for c in columns if c.rows])


def values_at(lines: Sequence[Line], step: float) -> list[tuple[str, str]]:
    """Return the values of lines at a step, by label; of a line with few points, only at one of its steps."""
    rows = []
    for line in lines:
        point, extent = line.series.nearest(step), line.series.extent
        if point is None or point[1] is None or extent is None:
            continue
        is_there = point[0] == step if STYLES[line.style].is_sparse else extent[0] <= step <= extent[1]
        if is_there:
            rows.append((line.label, loss_words(point[1]) if line.pane == "loss" else short_number(point[1])))
    return rows


def reward_figure(rewards: Sequence[RewardMeasured]) -> Figure:
    """Return the figure of the rewards: the training reward on the left scale, the held-out reward on the right one.

    The two come from different reward models, so only their trends are comparable. If the training reward rises while
    the held-out one falls, the training exploits its reward model.
    """
    followed, held_out = _reward_series(rewards)
    lines = (
        Line("followed", "training reward", "", followed, "chart_smooth", "marked"),
        Line("held_out", "held-out reward (right scale)", "", held_out, "chart_validation", "marked_dashed",
             on_right=True),
    )  # fmt: skip

    def readout(at: float, _near: float) -> Readout | None:
        measured = nearest(rewards, at)
        if measured is None:
            return None
        return Readout(float(measured.step), reward_line(measured), [Column("reward model", reward_rows(measured))])

    # The readout is at the top: the plot is low, and each reward model has a row.
    return Figure(
        frame=TWO_SCALES,
        lines=tuple(line for line in lines if len(line.series)),
        readout=readout,
        reads_at_top=True,
    )
