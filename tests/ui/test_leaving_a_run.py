"""Training continues while the window is closed, and the next window follows it."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modules.system.file_lock import Holder
from tests.builders.runs import run as run_here
from tests.ui.conftest import Window
from tests.ui.fake_engine import started, step
from tests.ui.test_engine_run import real, wait  # noqa: F401 - a fixture
from tests.ui.test_offers import Desk, desk  # noqa: F401 - a fixture
from tests.ui.test_run_window import end, press_start
from tests.unit.test_run_records import write_run
from trainer.commands import CommandDesk, Pause, Stop
from trainer.event_lines import to_line
from trainer.events import PhaseChanged, RunFailed, RunFinished, StepFinished
from trainer.launch import RunRequest
from trainer.run_folder import inbox
from trainer.run_folder.attached import AttachedRun
from trainer.run_folder.backup import write_backup
from trainer.run_folder.run_lock import RunLock
from ui.app.window import App
from ui.forms.preferences import LeftRun
from ui.loop.past_runs import read_state_so_far

NAME = "2026-03-01_12-00-00"


class Detached:
    """Takes the request for a detached run; the process that it names is this one."""

    def __init__(self) -> None:
        self.requests: list[RunRequest] = []
        self.error: OSError | None = None

    def start(self, request: RunRequest) -> tuple[Holder, Path]:
        if self.error is not None:
            raise self.error
        self.requests.append(request)
        return Holder.of(os.getpid()), Path("child.log")


@pytest.fixture
def detached(ready: Window) -> Detached:
    taken = Detached()
    ready.app.closing._start = taken.start
    ready.asked.answers["choose"] = "leave"
    return taken


def begin(window: Window, folder: Path, *, steps: int = 2) -> Any:
    run = press_start(window)
    run.emit(started(str(folder)), *(step(number) for number in range(1, steps + 1)))
    window.wait_until(lambda: window.app.context.session.state.step is not None, "a step")
    return run


def test_a_run_is_stopped_and_continued_by_a_process_of_its_own(
    ready: Window, detached: Detached, tmp_path: Path
) -> None:
    run_dir = write_run(tmp_path, NAME, [])
    run = begin(ready, run_dir)
    ready.app.closing.ask()
    (asked,) = ready.asked.asked("choose")
    assert asked[2] == ["keep", "stop", "leave"]
    assert run.desk.is_stop_requested
    assert not ready.app._is_closed
    from datetime import datetime

    backup = write_backup(run_dir, step=2, epoch=1, now=datetime(2026, 3, 1), write=lambda f: None)
    run.end(RunFinished("stopped", 2, "Stopped.", backup_path=str(backup.path)))
    ready.wait_until(lambda: ready.app._is_closed)
    [request] = detached.requests
    assert (request.kind, request.resume_from, request.in_window) == ("resume", backup.path, False)
    assert request.config is run.request.config
    left = ready.app.preferences.now.left_run
    assert left is not None
    assert (left.run_dir, left.pid) == (str(run_dir), os.getpid())


def test_a_run_without_a_backup_begins_again(ready: Window, detached: Detached) -> None:
    run = press_start(ready)
    ready.app.closing.ask()
    run.end(RunFinished("stopped", 0, "Stopped before the first step."))
    ready.wait_until(lambda: ready.app._is_closed)
    [request] = detached.requests
    assert (request.kind, request.resume_from, request.datasets) == ("train", None, None)


def test_a_run_that_finishes_meanwhile_is_not_continued(ready: Window, detached: Detached) -> None:
    run = press_start(ready)
    ready.app.closing.ask()
    run.end(RunFinished("finished", 400, "All done."))
    ready.wait_until(lambda: ready.app._is_closed)
    assert detached.requests == []


def test_the_window_stays_where_the_run_fails_or_the_process_cannot_start(ready: Window, detached: Detached) -> None:
    run = press_start(ready)
    ready.app.closing.ask()
    run.end(RunFailed("The disk is full."))
    ready.wait_until(lambda: ready.asked.asked("show_failure"))
    ready.settle()
    assert not ready.app._is_closed
    detached.error = OSError("no more processes")
    run = press_start(ready)
    ready.app.closing.ask()
    run.end(RunFinished("stopped", 0, "Stopped."))
    ready.wait_until(lambda: len(ready.asked.asked("show_failure")) == 2)
    ready.settle()
    assert not ready.app._is_closed
    detached.error = None
    run = press_start(ready)
    ready.app.closing.ask()
    run.end(RunFinished("stopped", 0, "Stopped."))
    ready.wait_until(lambda: ready.app._is_closed)
    assert len(detached.requests) == 1, "once, whatever failed before"


def test_the_run_of_a_queue_is_left_to_the_queue(ready: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    run = press_start(ready)
    monkeypatch.setattr(type(ready.app.queue), "owns_run", property(lambda _queue: True))
    ready.app.closing.ask()
    assert ready.asked.asked("choose")[0][2] == ["keep", "stop"]
    end(ready, run)


def test_the_next_window_follows_it_and_controls_it(open_window: Callable[..., Window], tmp_path: Path) -> None:
    """Its curve begins at the first step, commands arrive, and closing again asks nothing of it."""
    first = [(0.0, started(str(tmp_path))), (1.0, PhaseChanged("training")), *((1.0 + n, step(n)) for n in (1, 2, 3))]
    run_dir = write_run(tmp_path, NAME, first)
    lock, commands = RunLock(run_dir), CommandDesk()
    window = open_window()
    session, closing = window.app.context.session, window.app.closing
    process = Holder.of(os.getpid())
    window.app.preferences.change(left_run=LeftRun(str(run_dir), process.pid, process.started, ""))
    assert closing.look() == run_dir
    window.wait_until(lambda: session.is_active, "the attached run")
    assert session.is_attached
    assert window.app.context.navigation.page == "run"
    assert window.app.preferences.now.left_run is None
    with (run_dir / "events.jsonl").open("a") as file:
        file.write(to_line(step(4)) + "\n" + to_line(step(5))[:20])
    window.wait_until(lambda: len(session.state.curve("loss")) == 4, "the next step")
    assert [number for number, _ in session.state.curve("loss")] == [1, 2, 3, 4]
    with inbox.open_inbox(run_dir, commands):
        session.pause()
        window.wait_until(lambda: commands.is_paused, "the pause")
        session.stop()
        window.wait_until(lambda: commands.is_stop_requested, "the stop")
    with (run_dir / "events.jsonl").open("a") as file:
        file.write(to_line(step(5))[20:] + "\n" + to_line(RunFinished("stopped", 5, "Stopped.")) + "\n")
    lock.release()
    window.app.preferences.change(left_run=None)
    window.wait_until(lambda: session.stage == "idle", "the end")
    assert session.state.finished is not None
    assert session.state.finished.outcome == "stopped"
    assert len(session.state.curve("loss")) == 5
    assert not session.is_attached


def test_closing_leaves_a_followed_run_alone(open_window: Callable[..., Window], tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, NAME, [(0.0, started(str(tmp_path))), (1.0, PhaseChanged("paused"))])
    lock, window = RunLock(run_dir), open_window()
    session = window.app.context.session
    window.app.closing.follow(run_dir)
    window.wait_until(lambda: session.is_active, "the attached run")
    assert session.stage == "paused"
    window.asked.answers["choose"] = "leave"
    window.app.closing.ask()
    assert window.app._is_closed
    assert not (run_dir / inbox.INBOX_FILE).exists()
    lock.release()


def test_a_process_that_has_ended_is_not_followed(open_window: Callable[..., Window], tmp_path: Path) -> None:
    window = open_window()
    window.app.preferences.change(left_run=LeftRun(str(tmp_path), os.getpid(), 1.0, ""))
    assert window.app.closing.look() is None
    assert window.app.preferences.now.left_run is None


def test_a_killed_process_is_a_failure(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, NAME, [(0.0, started(str(tmp_path)))])
    _state, num_bytes = read_state_so_far(run_dir)
    run = AttachedRun(run_dir, from_byte=num_bytes)
    run.thread.join(20)
    assert not run.is_alive
    failed = run.events.get_nowait()
    assert isinstance(failed, RunFailed)
    assert "ended unexpectedly" in failed.message


def test_a_run_that_finished_before_it_was_followed_has_not_failed(tmp_path: Path) -> None:
    done = RunFinished("finished", 400, "All done.")
    run_dir = write_run(tmp_path, NAME, [(0.0, started(str(tmp_path))), (1.0, done)])
    run = AttachedRun(run_dir, from_byte=read_state_so_far(run_dir)[1])
    run.thread.join(20)
    assert run.events.get_nowait() == done


def test_another_process_stops_a_run(config: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command of an earlier attempt does nothing."""
    monkeypatch.setattr(inbox, "_POLL_SECONDS", 0.01)
    sent: list[int] = []

    def listen(event: Any, _send: Any) -> None:
        if isinstance(event, StepFinished) and not sent:
            sent.append(event.step)
            (folder,) = (Path(config.general.workspace_dir) / "runs").iterdir()
            inbox.send(folder, Stop())

    ran = run_here(config, on_event=listen)
    assert ran.finished.outcome == "stopped"
    (folder,) = (Path(config.general.workspace_dir) / "runs").iterdir()
    assert not (folder / inbox.INBOX_FILE).exists()
    inbox.send(folder, Pause())
    ran = run_here(config, resume_from=folder, on_event=listen)
    assert ran.finished.outcome == "finished"


@pytest.fixture
def config(tiny_sd: Path, images: Path, tmp_path: Path) -> Any:
    from modules.config.schema import Config

    return Config.model_validate(
        {
            "general": {"workspace_dir": str(tmp_path / "workspace"), "cache_dir": str(tmp_path / "cache")},
            "model": {"base_model": str(tiny_sd)},
            "concepts": [{"path": str(images)}],
            "data": {"resolution_px": [64]},
            "training": {"epochs": 8},
            "output": {"destination": str(tmp_path / "lora.safetensors")},
        }
    )


@pytest.mark.slow
@pytest.mark.full
def test_the_engine_trains_on_and_is_found_again(real: Window, root: tk.Tk, tmp_path: Path) -> None:  # noqa: F811
    session = real.app.context.session
    real.app.shell.bottom_bar.start.invoke()
    wait(real, lambda: session.state.step is not None, "the first step")
    real.asked.answers["choose"] = "leave"
    real.app.closing.ask()
    wait(real, lambda: real.app._is_closed, "the close")
    left_at = session.state.finished
    assert left_at is not None
    assert left_at.outcome == "stopped"
    again = App(interaction=real.asked, launch_run=real.engine.launch, root=root)
    window = Window(again, real.engine, real.asked)
    again.show()
    session = again.context.session
    wait(window, lambda: session.is_attached, "the run that continued")
    wait(window, lambda: session.state.step is not None and session.state.step.step > left_at.step + 2, "its steps")
    again.shell.bottom_bar.start.invoke()
    wait(window, lambda: session.stage == "idle", "the stop")
    assert session.state.finished is not None
    assert session.state.finished.outcome == "stopped"
    steps = [number for number, _ in session.state.curve("loss")]
    assert steps == list(range(1, session.state.finished.step + 1))
    again.close()
