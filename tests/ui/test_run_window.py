"""A run in the window, played by a scripted engine."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.schema import Config
from modules.system.paths import session_file
from modules.system.problem import Problem
from tests.ui.conftest import Window
from tests.ui.driving import walk
from tests.ui.fake_engine import FakeRun, started, step
from trainer.commands import BackupNow, SampleNow, SaveNow, ValidateNow
from trainer.events import (
    BackupSaved,
    CacheProgress,
    DownloadProgress,
    PhaseChanged,
    RunFailed,
    RunFinished,
    SampleProgress,
    SampleReady,
    ValidationFinished,
    WarningRaised,
)
from trainer.launch import RunRequest
from trainer.preflight import Progress, Report
from trainer.preflight.passes import ESTIMATING
from trainer.wording import PHASE_LABELS
from ui.loop.interaction import BEFORE_START
from ui.widgets.controls import Button


def press_start(window: Window) -> FakeRun:
    """Press Start and return the run."""
    num_runs = len(window.engine.requests)
    window.app.shell.bottom_bar.start.invoke()
    window.wait_until(lambda: len(window.engine.requests) > num_runs, "a run")
    window.settle()
    assert window.engine.run is not None
    return window.engine.run


def end(window: Window, run: FakeRun, *events: Any) -> None:
    run.end(*(events or (RunFinished("finished", 400, "All done."),)))
    window.wait_until(lambda: window.app.context.session.stage == "idle", "the end")
    window.settle()


def test_at_idle_every_bar_is_empty(window: Window) -> None:
    bar = window.app.shell.bottom_bar
    assert (bar.phase_bar.share, bar.epoch_bar.share, bar.step_bar.share) == (0, 0, 0)
    assert {figure.cget("text") for figure in bar.figures.values()} == {"–"}
    assert bar.phase.cget("text") == "Ready"
    assert bar.start.cget("text") == "Start"


def test_a_start_saves_the_session_and_opens_the_run_page(ready: Window) -> None:
    session_file().unlink(missing_ok=True)
    run = press_start(ready)
    assert ready.app.context.navigation.page == "run"
    ready.wait_until(session_file().is_file)
    assert json.loads(session_file().read_text(encoding="utf-8"))["source"]["name"] == "ready"
    assert run.request.config == ready.app.form.config
    assert ready.asked.calls == []
    end(ready, run)


def test_a_check_that_takes_long_is_shown_and_stopped(ready: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is estimated in the background; Stop gives the window back at once."""
    session, bar, ended = ready.app.context.session, ready.app.shell.bottom_bar, threading.Event()

    def check(_config: Config, *, progress: Progress, **_: object) -> Report:
        try:
            while True:
                progress(ESTIMATING, 0, 1)
                time.sleep(0.001)
        finally:
            ended.set()

    monkeypatch.setattr(session, "_check", check)
    bar.start.invoke()
    ready.wait_until(lambda: bar.start.cget("text") == "Checking…", "the check")
    ready.wait_until(lambda: bar.start.cget("text") == "Stop", "the button")
    assert (bar.phase.cget("text"), bar.detail.cget("text")) == ("Checking", ESTIMATING)
    bar.start.invoke()
    ready.wait_until(lambda: bar.start.cget("text") == "Start", "the end")
    assert ended.wait(120)
    assert bar.phase.cget("text") == "Ready"
    assert ready.engine.requests == []


def test_the_bars_and_figures_follow(ready: Window) -> None:
    run, bar = press_start(ready), ready.app.shell.bottom_bar
    run.emit(started(), PhaseChanged("caching"), CacheProgress("images", 3, 12, 9.0))
    ready.wait_until(lambda: bar.detail.cget("text") == "3 of 12 images")
    ready.settle()
    assert (bar.phase.cget("text"), bar.phase_bar.share) == ("Caching", 0.25)
    assert bar.phase_bar.winfo_ismapped()
    height = bar.winfo_height()
    run.emit(PhaseChanged("training"), step(100))
    ready.wait_until(lambda: bar.epoch_label.cget("text") == "Epoch 3 of 10")
    assert bar.step_label.cget("text") == "Step 20 of 40"
    assert (bar.epoch_bar.share, bar.step_bar.share, bar.phase_bar.share) == (0.25, 0.5, 0)
    ready.settle()
    assert not bar.phase_bar.winfo_ismapped(), "it was empty below Training"
    assert bar.winfo_height() == height, "the page above stays where it is"
    shown = {name: figure.cget("text") for name, figure in bar.figures.items()}
    assert shown == {"Loss": "0.1050", "Smoothed": "0.1040", "Images/s": "3.5", "Time left": "1 min 15 s"}
    run.emit(PhaseChanged("sampling"), SampleProgress(5, 50, 3.0))
    ready.wait_until(lambda: bar.detail.cget("text") == "5 of 50 denoising steps")
    end(ready, run)
    assert not bar.epoch_bar.winfo_ismapped(), "it was empty below the last epoch"
    assert not bar.step_bar.winfo_ismapped()
    assert (bar.epoch_label.cget("text"), bar.step_label.cget("text")) == ("Epoch 3 of 10", "Step 20 of 40")
    kept = {name: figure.cget("text") for name, figure in bar.figures.items()}
    assert kept == {"Loss": "0.1050", "Smoothed": "0.1040", "Images/s": "3.5", "Time left": "–"}
    assert bar.phase.cget("text") == "Finished"
    assert bar.detail.cget("text") == "All done."


def test_a_download_is_shown_until_it_is_complete(ready: Window) -> None:
    run, bar = press_start(ready), ready.app.shell.bottom_bar
    run.emit(PhaseChanged("loading", "owner/model"))
    ready.wait_until(lambda: bar.phase.cget("text") == PHASE_LABELS["loading"])
    run.emit(DownloadProgress(1500.0, 4000.0, 75.0))
    ready.wait_until(lambda: bar.phase.cget("text") == "Downloading")
    assert bar.detail.cget("text") == "38%, 1,500 of 4,000 MB of owner/model"
    assert bar.phase_bar.share == 0.375
    assert bar.figures["Time left"].cget("text") == "1 min 15 s"
    run.emit(DownloadProgress(4000.0, 4000.0, 0.0))
    ready.wait_until(lambda: bar.phase.cget("text") == PHASE_LABELS["loading"])
    assert (bar.detail.cget("text"), bar.phase_bar.share) == ("owner/model", 0)
    assert bar.figures["Time left"].cget("text") == "–"
    end(ready, run)


def test_samples_of_an_earlier_run_are_released(ready: Window, tmp_path: Path) -> None:
    traces = []
    for n in range(1, 4):
        run = press_start(ready)
        samples: Any = ready.app.shell.pages["run"].samples
        path = tmp_path / f"sample{n}.png"
        Image.new("RGB", (32, 32), (0, 40 * n, 0)).save(path)
        run.emit(started(), PhaseChanged("training"), SampleReady(n, 0, "a number", str(path)))
        ready.wait_until(lambda: [p for p, _ in samples.photos.loaded] == [path], "the image")  # noqa: B023 - this one
        ready.settle()
        traces.append(weakref.ref(next(iter(samples.photos.loaded.values()))))
        end(ready, run)
    gc.collect()
    assert [trace() is None for trace in traces] == [True, True, False]


def test_stop_pause_and_continue(ready: Window) -> None:
    run, bar = press_start(ready), ready.app.shell.bottom_bar
    run.emit(started(), PhaseChanged("training"), step(1))
    ready.wait_until(lambda: bar.epoch_label.cget("text") == "Epoch 1 of 10")
    assert (bar.start.cget("text"), bar.second.cget("text")) == ("Stop", "Pause")
    bar.second.invoke()
    ready.settle()
    assert run.desk.is_paused
    assert (bar.phase.cget("text"), bar.second.cget("text")) == ("Pausing", "Continue"), "it trains its step"
    run.emit(PhaseChanged("paused"))
    ready.wait_until(lambda: bar.phase.cget("text") == "Paused", "the pause")
    assert bar.second.cget("text") == "Continue"
    ready.app.context.actions.run("sample_now")  # which gave no sign
    ready.settle()
    assert bar.phase.cget("text") == "Paused"
    assert bar.detail.cget("text") == "Sample now: once the run continues.", "it was cut at the usual width"
    bar.second.invoke()
    ready.settle()
    assert not run.desk.is_paused
    bar.start.invoke()
    ready.settle()
    assert run.desk.is_stop_requested
    assert (bar.start.cget("text"), bar.start.cget("state")) == ("Stopping…", "disabled")
    assert not bar.second.winfo_ismapped()
    end(ready, run, RunFinished("stopped", 1, "Stopped at step 1."))
    assert (bar.start.cget("text"), bar.start.cget("state")) == ("Start", "normal")
    assert bar.phase.cget("text") == "Stopped"


def test_a_double_click_on_pause_is_one_click(ready: Window) -> None:
    """Pause becomes Continue under the pointer: the second click continued the run at once."""
    run, bar = press_start(ready), ready.app.shell.bottom_bar
    run.emit(started(), PhaseChanged("training"), step(1))
    ready.wait_until(lambda: bar.second.cget("text") == "Pause" and bar.second.winfo_viewable(), "Pause")
    canvas = bar.second._canvas
    canvas.event_generate("<Enter>")
    shown = []
    for at_ms in (10_000, 10_200, 20_000):
        canvas.event_generate("<ButtonPress-1>", x=9, y=9, time=at_ms)
        canvas.event_generate("<ButtonRelease-1>", x=9, y=9, time=at_ms + 50)
        ready.settle()
        shown.append(bar.second.cget("text"))
    assert shown == ["Continue", "Continue", "Pause"]
    end(ready, run)


def test_the_keys_start_and_stop(ready: Window) -> None:
    root = ready.app.root
    root.focus_force()
    root.update()
    root.event_generate("<F5>")
    ready.wait_until(lambda: ready.engine.requests)
    assert ready.engine.run is not None
    root.event_generate("<F5>")  # a run is active
    root.event_generate("<F7>")
    assert ready.engine.run.desk.is_paused
    root.event_generate("<F8>")
    root.event_generate("<Shift-F5>")
    assert ready.engine.run.desk.is_stop_requested
    end(ready, ready.engine.run)
    assert len(ready.engine.requests) == 1


def test_the_buttons_for_now(ready: Window) -> None:
    run = press_start(ready)
    page: Any = ready.app.shell.pages["run"]
    buttons = {b.cget("text"): b for b in walk(page.frame.buttons) if isinstance(b, Button)}
    session = ready.app.context.session
    assert buttons["Validate now"].cget("state") == "disabled", "without validation images it did nothing"
    for kind in ("validation_pairs", "validation"):
        session.config = Config.model_validate({"concepts": [{"path": "some", "kind": kind}]})
        session.changed()
        ready.settle()
        assert buttons["Validate now"].cget("state") == "normal", kind
    for label, command in (
        ("Sample now", SampleNow), ("Validate now", ValidateNow), ("Back up now", BackupNow), ("Save now", SaveNow),
    ):  # fmt: skip
        assert buttons[label].cget("state") == "normal"
        buttons[label].invoke()
        assert run.desk.take(command), label
    assert buttons["Open folder"].cget("state") == "disabled"
    run.emit(started("/tmp/runs/one"))
    ready.wait_until(lambda: buttons["Open folder"].cget("state") == "normal")
    buttons["Open folder"].invoke()
    assert ready.asked.asked("open_path") == [(Path("/tmp/runs/one"),)]
    end(ready, run)
    assert buttons["Sample now"].cget("state") == "disabled"


def test_the_run_page_shows_the_course(ready: Window, tmp_path: Path) -> None:
    for n in range(4):
        Image.new("RGB", (32, 32), (0, 60 * n, 0)).save(tmp_path / f"sample{n}.png")
    run = press_start(ready)
    page: Any = ready.app.shell.pages["run"]
    run.emit(
        started(), PhaseChanged("training"), *(step(n) for n in range(1, 61)), ValidationFinished(40, 0.2),
        ValidationFinished(45, float("nan")),
        *(SampleReady(0, i, p, str(tmp_path / f"sample{i}.png")) for i, p in enumerate(("a number", "a zog"))),
        SampleReady(40, 0, "a number", str(tmp_path / "sample2.png")),
        SampleReady(40, 1, "a zog", str(tmp_path / "gone.png")),
        BackupSaved(50, "/tmp/runs/one/backup/step-50"), WarningRaised("An image is broken."),
    )  # fmt: skip
    ready.wait_until(lambda: len(page.samples.table.samples) == 4, "samples")
    ready.wait_until(lambda: len(page.samples.photos.loaded) == 4, "images")
    ready.settle()
    assert page.samples.table.steps == (0, 40)
    assert len(page.chart.lines[0].series) == 60
    assert len(page.chart.find_all()) > 8
    assert "Training: UNet, Text encoder" in page.facts.cget("text")
    log = page.log.text.get("1.0", "end")
    assert "An image is broken." in log
    assert "Backup at step 50" in log
    page.chart.event_generate("<Motion>", x=100, y=60)
    assert page.chart.find_withtag("pointer")
    end(ready, run)
    assert "Trained: " in page.facts.cget("text")


def written(chart: Any, tag: str = "all") -> list[str]:
    return [chart.itemcget(i, "text") for i in chart.find_withtag(tag) if chart.type(i) == "text"]


def point_at(window: Window, chart: Any, step: int) -> list[str]:
    """Move the pointer to a step and return the text shown there."""
    chart.event_generate("<Motion>", x=round(chart.x(step)), y=60)
    window.settle()
    return written(chart, "pointer")


def test_the_chart_shows_validation_the_best_and_each_number(ready: Window) -> None:
    run = press_start(ready)
    page: Any = ready.app.shell.pages["run"]
    run.emit(
        started(), PhaseChanged("training"), ValidationFinished(0, 0.1), *(step(n) for n in range(1, 61)),
        ValidationFinished(20, 0.2, {"250": 0.15, "750": 0.25}, {"cats": 0.22, "dogs": 0.18}, 0.3, 0.2, 20),
        ValidationFinished(40, 0.4, {"250": 0.35, "750": 0.45}, {"cats": 0.42, "dogs": 0.38}, 0.6, 0.2, 20),
    )  # fmt: skip
    ready.wait_until(lambda: [len(x.series) for x in page.chart.lines if x.label == "validation"] == [3], "validations")
    ready.wait_until(lambda: len(page.chart.lines[0].series) == 60, "the course")
    ready.settle()
    chart = page.chart
    assert [t for t in written(chart) if t.isalpha()] == ["loss", "smoothed", "validation", "weighted", "best"]
    ring = chart.bbox(chart.find_withtag("best")[0])
    assert ring[0] < chart.x(20) < ring[2]
    assert ring[1] < chart.y(0.2) < ring[3]
    assert "Validation: 0.4000 at step 40; best 0.2000 at step 20" in page.facts.cget("text")
    assert point_at(ready, chart, 20) == [
        "Step 20", "curve", "loss", "smoothed", "validation", "weighted", "0.1250", "0.1200", "0.2000", "0.3000",
        "best validation", "overall", "weighted", "cats",
        "dogs", "0.2000", "0.3000", "0.2200", "0.1800", "at timestep", "250", "750", "0.1500", "0.2500",
    ]  # fmt: skip
    assert "validation" in point_at(ready, chart, 40)
    assert point_at(ready, chart, 30) == ["Step 30", "curve", "loss", "smoothed", "0.1167", "0.1133"]
    assert point_at(ready, chart, 0) == ["Step 0", "curve", "validation", "0.1000", "validation", "overall", "0.1000"]
    for at in (0, 20, 40, 60):
        point_at(ready, chart, at)
        left, top, right, bottom = chart.bbox(
            *(i for i in chart.find_withtag("pointer") if chart.type(i) == "rectangle")
        )
        assert 0 <= left + 1 < right - 1 <= chart.winfo_width()
        assert 0 <= top + 1 < bottom - 1 <= chart.winfo_height()
    chart.event_generate("<Leave>")
    assert not chart.find_withtag("pointer")
    end(ready, run)


def test_an_early_stop_is_reported(ready: Window) -> None:
    run, bar = press_start(ready), ready.app.shell.bottom_bar
    message = "Stopped early after 5 steps: 2 validations in a row did not improve on step 3."
    run.emit(started(), PhaseChanged("training"), step(5))
    end(ready, run, RunFinished("stopped_early", 5, message))
    assert (bar.phase.cget("text"), bar.detail.cget("text")) == ("Stopped early", message)
    page: Any = ready.app.shell.pages["run"]
    assert message in page.log.text.get("1.0", "end")


def test_the_trained_parts_are_named(ready: Window) -> None:
    run = press_start(ready)
    page: Any = ready.app.shell.pages["run"]
    run.emit(started(), PhaseChanged("training"), step(50, training_parts=("unet",), num_skipped=2))
    ready.wait_until(lambda: "Training: UNet\n" in page.facts.cget("text"))
    assert "2 skipped steps" in page.facts.cget("text")
    end(ready, run)


def test_before_a_start_the_page_shows_the_preview(ready: Window) -> None:
    page: Any = ready.open_page("run")
    ready.wait_until(lambda: "4 images, 40 steps in total" in page.facts.cget("text"), "the preview")
    assert page.facts_card.heading.cget("text") == BEFORE_START
    assert "Sizes: 64x64 (4)" in page.facts.cget("text")
    ready.app.form.edit_text("training.epochs", "3")
    ready.wait_until(lambda: "12 steps in total" in page.facts.cget("text"), "the new preview")
    assert page.fit_button.winfo_manager()
    run = press_start(ready)  # which loads, or downloads, for minutes
    ready.wait_until(lambda: page.facts_card.heading.cget("text") == "This run", "the run")
    assert not page.fit_button.winfo_manager()
    end(ready, run)


def test_errors_are_listed_and_link_to_their_fields(ready: Window) -> None:
    ready.app.form.edit("concepts", ())
    ready.app.form.edit("output.destination", "models/lora.txt")
    ready.app.shell.bottom_bar.start.invoke()
    wanted = {"Output & backups › Save to", "Concepts › Concepts"}  # the first one is found while it is edited, too
    findings = ready.app.context.findings
    ready.wait_until(lambda: wanted <= {f.place for f in findings.items}, "the findings of the start")
    ready.settle()
    assert ready.engine.requests == []
    assert ready.app.shell.findings_bar.winfo_ismapped()
    ready.app.context.navigation.go_to("output.destination")
    ready.settle()
    assert ready.app.context.navigation.page == "output"
    assert ready.app.shell.bottom_bar.start.cget("text") == "Start"


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_warnings_are_confirmed_with_the_preview(ready: Window, is_confirmed: bool) -> None:
    ready.app.form.edit("training.learning_rate", 1.0)
    ready.asked.answers["confirm_start"] = is_confirmed
    ready.app.shell.bottom_bar.start.invoke()
    ready.wait_until(lambda: ready.asked.calls)
    ((warnings, preview),) = ready.asked.asked("confirm_start")
    assert "learning rate of 1" in warnings[0].message
    assert preview.total_steps == 40
    ready.settle()
    assert len(ready.engine.requests) == is_confirmed
    if is_confirmed:
        assert ready.engine.run is not None
        end(ready, ready.engine.run)


def test_the_warnings_of_a_run_that_is_not_resumed_are_listed_as_such(ready: Window) -> None:
    """Their list was titled Before you start, unlike the question."""
    report = Report((Problem("training.epochs", "Mind it.", "warning"),), None)
    ready.app.starter._handle_report(RunRequest(ready.app.form.config, "resume"), report)
    assert ready.app.context.findings.title == "Before you resume"


def test_a_second_start_in_the_same_window(ready: Window) -> None:
    for number in (1, 2):
        run = press_start(ready)
        run.emit(started(f"/tmp/runs/{number}"), PhaseChanged("training"), *(step(n) for n in range(1, 6)))
        page: Any = ready.app.shell.pages["run"]
        ready.wait_until(lambda: page.chart.lines and len(page.chart.lines[0].series) == 5)  # noqa: B023 - the same page every time
        assert f"run {number}" in page.facts.cget("text")
        end(ready, run)
        assert len(ready.engine.requests) == number


def test_nothing_of_the_first_run_stays_alive(ready: Window) -> None:
    run = press_start(ready)
    traces = [weakref.ref(run), weakref.ref(run.handle.thread), weakref.ref(run.desk)]
    run.emit(started(), PhaseChanged("training"), step(1))
    end(ready, run)
    ready.engine.run = None
    del run
    gc.collect()
    assert [trace() for trace in traces] == [None, None, None]


def test_a_failure_is_reported_in_a_sentence_with_details_on_request(ready: Window, tmp_path: Path) -> None:
    details = tmp_path / "details.txt"
    details.write_text("Traceback: all of it", encoding="utf-8")
    run = press_start(ready)
    end(ready, run, RunFailed("The memory ran out.", "Lower the batch size.", str(details)))
    ready.wait_until(lambda: ready.asked.asked("show_failure"))
    ((failure,),) = ready.asked.asked("show_failure")
    assert (failure.message, failure.advice) == ("The memory ran out.", "Lower the batch size.")
    assert (failure.details, failure.details_file) == ("Traceback: all of it", details)
    bar = ready.app.shell.bottom_bar
    assert (bar.phase.cget("text"), bar.detail.cget("text")) == (
        "Failed",
        "The memory ran out. Lower the batch size.",
    )
    end(ready, press_start(ready))
    assert bar.phase.cget("text") == "Finished"


def test_a_thread_that_dies_leaves_no_frozen_bar(ready: Window) -> None:
    run, bar = press_start(ready), ready.app.shell.bottom_bar
    run.emit(started(), PhaseChanged("training"), step(200))
    ready.wait_until(lambda: bar.epoch_bar.share == 0.5)
    run.end()
    ready.wait_until(lambda: ready.asked.asked("show_failure"))
    ready.settle()
    assert not bar.epoch_bar.winfo_ismapped()
    assert bar.start.cget("text") == "Start"


def test_an_earlier_run_is_offered_and_resumed(ready: Window) -> None:
    from datetime import datetime

    from modules.config.codec import save_file
    from modules.system.paths import from_root
    from trainer.run_folder.backup import write_backup
    from trainer.run_folder.run_dir import new_run_dir

    bar = ready.app.shell.bottom_bar
    assert not bar.second.winfo_ismapped()
    config, now = ready.app.form.config, datetime(2026, 1, 1)
    run_dir = new_run_dir(from_root(config.general.workspace_dir), now=now)
    backup = write_backup(run_dir, step=12, epoch=2, now=now, write=lambda f: save_file(config, f / "config.json"))
    ready.app.context.starter.look_for_backup()
    ready.wait_until(bar.second.winfo_ismapped)
    assert bar.second.cget("text") == "Resume run"
    assert "Step 12" in bar._second_tip()
    bar.second.invoke()
    ready.wait_until(lambda: ready.engine.requests)
    assert (ready.engine.requests[0].kind, ready.engine.requests[0].resume_from) == ("resume", backup.path)
    assert ready.engine.run is not None
    end(ready, ready.engine.run)


def test_closing_while_training_asks(ready: Window) -> None:
    run = press_start(ready)
    ready.app.closing.ask()
    (asked,) = ready.asked.asked("choose")
    assert asked[2] == ["keep", "stop", "leave"]
    assert not run.desk.is_stop_requested
    assert not ready.app._is_closed
    end(ready, run)


def test_stop_and_close_closes_after_the_end(ready: Window) -> None:
    run = press_start(ready)
    ready.asked.answers["choose"] = "stop"
    ready.app.closing.ask()
    ready.settle()
    assert run.desk.is_stop_requested
    assert not ready.app._is_closed
    ready.asked.answers["choose"] = "wait"
    ready.app.closing.ask()  # impatience
    assert [call[2] for call in ready.asked.asked("choose")] == [["keep", "stop", "leave"], ["wait", "end"]]
    assert not ready.app._is_closed
    run.end(RunFinished("stopped", 3, "Stopped."))
    ready.wait_until(lambda: ready.app._is_closed)


def test_closing_at_idle_does_not_ask(window: Window) -> None:
    window.app.context.actions.run("quit")
    assert window.app._is_closed
    assert window.asked.calls == []


def test_the_last_session_is_restored(open_window: Callable[..., Window]) -> None:
    first = open_window()
    first.open_page("sampling")
    first.app.form.edit_text("training.epochs", "77")
    first.app.preferences.change(show_advanced=True)
    config, source = first.app.form.config, first.app.form.source
    second = open_window()
    assert second.app.form.config == config
    assert second.app.form.source == source
    assert second.app.form.is_changed
    assert second.app.context.navigation.page == "sampling"
    assert second.app.shell.side_bar.views["All"]._is_open


def test_a_broken_session_is_reported_and_the_defaults_open(open_window: Callable[..., Window]) -> None:
    session_file().parent.mkdir(parents=True)
    session_file().write_text("{ broken", encoding="utf-8")
    window = open_window()
    assert "could not be read" in window.app.context.findings.items[0].problem.message
    assert window.app.shell.findings_bar.winfo_ismapped()
    assert list(session_file().parent.glob("session-*.bad"))


def test_an_error_in_a_callback_is_logged_and_shown(window: Window, logged_errors: list[str]) -> None:
    def broken() -> None:
        raise RuntimeError("a test error")

    window.app.root.after_idle(broken)
    window.wait_until(lambda: window.asked.asked("show_failure"))
    ((failure,),) = window.asked.asked("show_failure")
    assert "a test error" in failure.details
    assert logged_errors
    logged_errors.clear()
