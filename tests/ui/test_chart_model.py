"""What the chart shows: lines, panes, zoom, axes and the values under the pointer; and earlier runs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ui.fake_engine import started, step
from trainer.event_lines import to_line
from trainer.events import RewardMeasured, ValidationFinished
from ui.loop.past_runs import read_past_run, with_curves
from ui.loop.run_state import RunState, fold
from ui.loop.series import Series
from ui.widgets.chart_layout import in_rows, panes_of
from ui.widgets.chart_model import (
    SHOWN_AT_FIRST,
    Axis,
    Line,
    PastRun,
    Zoom,
    axis_of,
    extent_of,
    lines_of,
    offered,
    shown,
    values_at,
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
    assert offered(lines) == ["loss", "smoothed", "validation", "rate", "reward", "gradient_norm"]
    assert [x.label for x in shown(lines, SHOWN_AT_FIRST)] == ["loss", "smoothed", "validation", "weighted", "older"]
    assert [x.pane for x in shown(lines, {"rate"})] == ["rate", "rate", "loss"]
    assert [x.label for x in shown(lines[:4], ())] == ["loss", "smoothed", "validation", "weighted"]


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
    assert half.moved(1000, extent).steps == (51.0, 101.0)
    assert half.moved(-1000, extent).steps == (1.0, 51.0)
    assert Zoom().moved(5, extent) == Zoom()


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
    lines = [line((1, 0.5), (2, 0.25)), line((1, 1e-4), pane="rate"), line((1, 3.0), pane="gradient_norm")]
    panes = panes_of(lines, (1, 2), is_log=False, top=20, bottom=240, between=10)
    assert [(pane.top, pane.bottom) for pane in panes] == [(20, 120), (130, 180), (190, 240)]
    assert [pane.lines[0].pane for pane in panes] == ["loss", "rate", "gradient_norm"]
    [alone] = panes_of(lines[:1], (1, 2), is_log=False, top=20, bottom=240, between=10)
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
    assert [p.name for p in with_curves(tmp_path)] == ["2026-01-03_10-00-00", "2026-01-02_10-00-00"]
    assert with_curves(tmp_path, without=runs / "2026-01-03_10-00-00") == [runs / "2026-01-02_10-00-00"]
    assert with_curves(tmp_path / "nowhere") == []
    found = read_past_run(runs / "2026-01-02_10-00-00")
    assert list(found.series["loss"]) == [(1, 0.6), (2, 0.35), (3, None)]
    assert [s for s, _ in found.series["smoothed"]] == [1, 2, 3]
    assert read_past_run(tmp_path / "nowhere") == PastRun("nowhere")
