"""The model of the plots: ticks, axes, panes, zoom; the lines of a run, the values under the pointer, earlier runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.ui.fake_engine import started, step
from trainer.event_lines import to_line
from trainer.events import RewardMeasured, ValidationFinished
from ui.loop.folding import fold
from ui.loop.past_runs import list_runs_with_log, read_past_run
from ui.loop.run_state import RunState
from ui.loop.series import PastRun, Series
from ui.widgets.plot_axes import Axis, Zoom, log_ticks, nearest, tick_label, ticks
from ui.widgets.plot_model import Figure, Line, axis_of, extent_of, in_rows, panes_of
from ui.widgets.run_figures import (
    PANES,
    SHOWN_AT_FIRST,
    lines_of,
    offered_curves,
    shown_lines,
    values_at,
    weighted_course,
)


def state_of(*steps: int, **changes: object) -> RunState:
    state = RunState()
    for number in steps:
        state = fold(state, step(number, **changes), float(number))
    return state


def line(*points: tuple[float, float], style: str = "line", pane: str = "loss") -> Line:
    return Line("smoothed", "smoothed", pane, Series(points), "chart_smooth", style)  # type: ignore[arg-type]


def test_a_run_has_lines_by_curve_and_those_chosen_are_shown() -> None:
    state = state_of(1, 2, 3, metrics={"reward": 0.5})
    validations = [ValidationFinished(2, 0.5, weighted_loss=0.25), ValidationFinished(3, float("nan"))]
    lines = lines_of(
        state.series,
        validations,
        [RewardMeasured(3, 8, 0.5, 0.25, "contrast")],
        [PastRun("older", {"smoothed": Series([(1, 0.5)])}), PastRun("empty")],
        unit_labels={"unet": "UNet"},
    )
    assert [x.label for x in lines] == [
        "loss", "smoothed", "validation", "weighted", "rate UNet", "rate text_encoder", "rollout reward",
        "training reward", "held-out reward", "gradient norm", "older",
    ]  # fmt: skip
    assert offered_curves(lines) == ["loss", "smoothed", "validation", "rate", "reward", "gradient_norm"]
    labels = [x.label for x in shown_lines(lines, SHOWN_AT_FIRST)]
    assert labels == ["loss", "smoothed", "validation", "weighted", "older"]
    assert [x.pane for x in shown_lines(lines, {"rate"})] == ["rate", "rate", "loss"]
    assert [x.label for x in shown_lines(lines[:4], ())] == ["loss", "smoothed", "validation", "weighted"]


def test_equal_rates_are_one_line() -> None:
    state = state_of(1, learning_rates={"unet": 1e-4, "text_encoder": 1e-4})
    assert [x.label for x in lines_of(state.series, (), ()) if x.pane == "rate"] == ["rate"]


def test_zoom_at_the_pointer_keeps_its_step_and_stays_in_the_run() -> None:
    extent = (1.0, 101.0)
    half = Zoom().at(26.0, 0.5, extent)
    assert half.steps == (13.5, 63.5)
    assert half.at(26.0, 2.0, extent) == Zoom()  # out to the whole run, which may grow again
    assert half.over((1.0, 200.0)) == (13.5, 63.5)
    assert Zoom().over((1.0, 200.0)) == (1.0, 200.0)
    assert Zoom().to(60, 20, extent).steps == (20, 60)
    assert Zoom().to(-50, 20, extent).steps == (1, 20)
    assert Zoom().to(20, 20.1, extent).steps == (19.05, 21.05)  # two steps at least
    assert half.move(1000, extent).steps == (51.0, 101.0)
    assert half.move(-1000, extent).steps == (1.0, 51.0)
    assert Zoom().move(5, extent) == Zoom()


def test_the_axis_fits_what_is_seen_and_leaves_outliers_out() -> None:
    raw = line(*((n, 50.0 if n == 500 else 0.1) for n in range(1, 1001)), style="thin")
    smooth = line((1, 0.5), (1000, 0.2))
    axis = axis_of([raw, smooth], (0, 1000), is_log=False)
    assert axis.low < 0.1 < 0.5 < axis.high < 1
    assert axis_of([smooth], (500, 1000), is_log=False).high < 0.3
    assert axis_of([], (0, 1), is_log=False) == Axis(0.0, 1.0)
    flat = axis_of([line((1, 0.5), (2, 0.5))], (1, 2), is_log=False)
    assert flat.low < 0.5 < flat.high


def test_a_logarithmic_axis_needs_positive_values() -> None:
    axis = axis_of([line((1, 0.001), (2, 1.0))], (1, 2), is_log=True)
    assert axis.is_log
    assert abs(axis.share((0.001 * 1.0) ** 0.5) - 0.5) < 1e-9
    assert (axis.share(1e-9), axis.share(1e9)) == (0.0, 1.0)
    assert axis.ticks(4) == [0.001, 0.01, 0.1, 1.0]
    assert not axis_of([line((1, 0.0), (2, 1.0))], (1, 2), is_log=True).is_log
    same = axis_of([line((1, 0.5), (2, 0.5))], (1, 2), is_log=True)
    assert same.low < 0.5 < same.high


def test_panes_share_the_height_and_the_first_is_the_highest() -> None:
    lines = (line((1, 0.5), (2, 0.25)), line((1, 1e-4), pane="rate"), line((1, 3.0), pane="gradient_norm"))
    place: Any = {"is_log": False, "top": 20, "bottom": 240, "between": 10}
    panes = panes_of(Figure(lines=lines, panes=tuple(PANES)), (1, 2), **place)
    assert [(pane.top, pane.bottom) for pane in panes] == [(20, 120), (130, 180), (190, 240)]
    assert [pane.lines[0].pane for pane in panes] == ["loss", "rate", "gradient_norm"]
    [alone] = panes_of(Figure(lines=lines[:1], panes=("loss",)), (1, 2), **place)
    assert (alone.top, alone.bottom) == (20, 240)
    assert 20 < alone.y(0.5) < alone.y(0.25) < 240


def test_the_legend_has_as_many_rows_as_it_needs() -> None:
    assert in_rows([50, 50, 50, 200, 10], 10, 120) == [(10, 0), (60, 0), (10, 1), (10, 2), (10, 3)]
    assert in_rows([], 10, 120) == []


def test_values_under_the_pointer() -> None:
    lines = [line((10, 0.5), (20, 0.25)), line((10, 0.7), (30, 0.9), style="dots"), line((10, 1e-4), pane="rate")]
    assert values_at(lines, 20) == [("smoothed", "0.2500")]
    assert values_at(lines, 10) == [("smoothed", "0.5000"), ("smoothed", "0.7000"), ("smoothed", "0.0001")]
    assert extent_of(lines) == (10, 30)
    assert extent_of([]) == (0, 1)
    assert extent_of([line((5, 1.0))]) == (5, 6)


def test_earlier_runs_are_found_and_read(tmp_path: Path) -> None:
    for name in ("2026-01-01_10-00-00", "2026-01-02_10-00-00", "2026-01-03_10-00-00"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    runs = tmp_path / "runs"
    events = [started(), step(1), step(2), step(3, loss=9.0), step(3, loss=float("nan"))]
    lines = [*map(to_line, events), '{"event": "StepFinished", "ste', json.dumps({"event": "StepFinished"})]
    (runs / "2026-01-02_10-00-00" / "events.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (runs / "2026-01-03_10-00-00" / "events.jsonl").write_text("", encoding="utf-8")
    assert [p.name for p in list_runs_with_log(tmp_path)] == ["2026-01-03_10-00-00", "2026-01-02_10-00-00"]
    assert list_runs_with_log(tmp_path, without=runs / "2026-01-03_10-00-00") == [runs / "2026-01-02_10-00-00"]
    assert list_runs_with_log(tmp_path / "nowhere") == []
    found = read_past_run(runs / "2026-01-02_10-00-00")
    assert list(found.series["loss"]) == [(1, 0.6), (2, 0.35), (3, None)]
    assert [s for s, _ in found.series["smoothed"]] == [1, 2, 3]
    assert read_past_run(tmp_path / "nowhere") == PastRun("nowhere")


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(1, 20))
def test_ticks_lie_inside_and_are_not_too_many(low: float, span: float, max_count: int) -> None:
    found = ticks(low, low + span, max_count)
    assert len(found) <= max(max_count + 1, 5)
    assert len(found) >= 2
    assert all(low - span * 1e-6 <= t <= low + span * (1 + 1e-6) for t in found)
    assert found == sorted(found)


def test_ticks_are_round() -> None:
    assert ticks(0.0, 0.5, 5) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert ticks(1, 400, 5) == [100, 200, 300, 400]
    assert ticks(1, 1, 5) == []


def test_a_single_tick_is_avoided() -> None:
    """A reward from 0.53 to 0.74 used to have the single tick 0.6, which shows no scale."""
    assert ticks(0.505, 0.757, 2) == [0.6, 0.7]
    assert ticks(0.517, 0.594, 2) == [0.52, 0.54, 0.56, 0.58]


def test_tick_labels_are_short() -> None:
    assert [tick_label(v) for v in (0.05, 100.0, 20_000.0, 0.0)] == ["0.05", "100", "20k", "0"]


def test_ticks_of_a_logarithmic_scale_are_round() -> None:
    assert log_ticks(0.009, 1.2, 4) == [0.01, 0.1, 1.0]
    assert log_ticks(0.08, 0.3, 4) == [0.1, 0.2]
    assert log_ticks(1e-6, 1e-3, 20) == [1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3]
    assert log_ticks(0.11, 0.14, 4) == ticks(0.11, 0.14, 4)
    assert log_ticks(1e-30, 1.0, 4) == [1e-30, 1e-22, 1e-14, 1e-06]
    assert log_ticks(-1.0, 1.0, 4) == []


def test_the_nearest_point() -> None:
    points = [ValidationFinished(n, 0.1) for n in (1, 10, 20)]
    assert [nearest(points, s).step for s in (-5, 4, 6, 14, 16, 99)] == [1, 1, 10, 10, 20, 20]  # type: ignore[union-attr]
    assert nearest([], 3) is None


def test_the_weighted_loss_is_drawn_if_it_differs() -> None:
    same = [ValidationFinished(0, 0.5, weighted_loss=0.5), ValidationFinished(5, 0.25, weighted_loss=0.25)]
    assert weighted_course(same) == []
    assert weighted_course([ValidationFinished(0, 0.5)]) == []  # an older run's
    another = [
        *same,
        ValidationFinished(9, 0.5, weighted_loss=0.1),
        ValidationFinished(12, 0.5, weighted_loss=math.nan),
    ]
    assert weighted_course(another) == [(0, 0.5), (5, 0.25), (9, 0.1)]
