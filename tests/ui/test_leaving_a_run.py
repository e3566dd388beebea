"""Training continues while the window is closed, and the next window follows it."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
import tkinter as tk
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.config.codec import export_file, save_file
from modules.config.schema import Config
from modules.settings.edit import replace_value
from modules.system.file_lock import Holder
from modules.system.paths import queue_file, session_file
from tests.builders.runs import run as run_here
from tests.ui.conftest import Window
from tests.ui.fake_engine import started, step
from tests.ui.test_engine_run import real, wait  # noqa: F401 - a fixture
from tests.ui.test_offers import Desk, desk  # noqa: F401 - a fixture
from tests.ui.test_run_window import press_start
from tests.unit.test_run_records import write_run
from trainer.child.run import launch_child
from trainer.commands import CommandDesk, Pause, Stop, StopRequested
from trainer.event_lines import to_line
from trainer.events import PhaseChanged, RunFailed, RunFinished, StepFinished, WarningRaised
from trainer.launch import RunHandle, RunRequest
from trainer.run_folder import attached, inbox
from trainer.run_folder.attached import AttachedRun, DetachedProcess
from trainer.run_folder.backup import BackupInfo, list_backups, write_backup
from trainer.run_folder.destination import note_destination
from trainer.run_folder.elsewhere import Elsewhere, note_elsewhere
from trainer.run_folder.records import config_of, read_record
from trainer.run_folder.run_lock import RunLock, holder_of
from trainer.run_queue import running
from trainer.run_queue.file import QueueFile
from trainer.run_queue.items import Change, Item
from trainer.run_queue.running import QueueRun
from trainer.run_status import RunStatus
from ui.app.session_files import load_session, take_session
from ui.app.window import App
from ui.features.queue.rows import status_line
from ui.forms.preferences import LeftProcess
from ui.loop.past_runs import read_state_so_far

NAME = "2026-03-01_12-00-00"


class Starts:
    """Takes the request for a detached run; the process that it names is this one."""

    def __init__(self) -> None:
        self.requests: list[RunRequest] = []
        self.num_queues = 0
        self.trains_only_next = False
        self.error: OSError | None = None

    def start(self, request: RunRequest) -> DetachedProcess:
        if self.error is not None:
            raise self.error
        self.requests.append(request)
        return DetachedProcess(Holder.of(os.getpid()), Path("child.log"))

    def start_queue(self, *, only_next: bool = False) -> tuple[Holder, Path]:
        if self.error is not None:
            raise self.error
        self.num_queues += 1
        self.trains_only_next = only_next
        return Holder.of(os.getpid()), Path("child.log")


@pytest.fixture
def detached(ready: Window, monkeypatch: pytest.MonkeyPatch) -> Starts:
    taken = Starts()
    monkeypatch.setattr(attached, "start_detached", taken.start)
    monkeypatch.setattr(running, "start_detached_queue", taken.start_queue)
    ready.asked.answers["choose"] = "leave"
    return taken


def begin(window: Window, folder: Path, *, steps: int = 2) -> Any:
    run = press_start(window)
    run.emit(started(str(folder)), *(step(number) for number in range(1, steps + 1)))
    window.wait_until(lambda: window.app.context.session.state.step is not None, "a step")
    return run


def begin_queue(window: Window) -> QueueFile:
    """Start a queue of two runs, and wait for the first."""
    file = QueueFile(queue_file())
    for name in ("one", "two"):
        file.change(lambda now, name=name: now.add(name, window.app.form.config))  # type: ignore[misc]
    window.app.queue.run()
    window.wait_until(lambda: window.engine.children, "the first run")
    return file


def test_a_run_is_stopped_and_continued_by_a_process_of_its_own(
    ready: Window, detached: Starts, tmp_path: Path
) -> None:
    run_dir = write_run(tmp_path, NAME, [])
    run = begin(ready, run_dir)
    ready.app.closing.ask()
    (asked,) = ready.asked.asked("choose")
    assert asked[2] == ["keep", "stop", "leave"]
    assert run.desk.is_stop_requested
    assert not ready.app._is_closed
    backup = write_backup(run_dir, step=2, epoch=1, now=datetime(2026, 3, 1), write=lambda f: None)
    run.end(RunFinished("stopped", 2, "Stopped.", backup_path=str(backup.path)))
    ready.wait_until(lambda: ready.app._is_closed)
    [request] = detached.requests
    assert (request.kind, request.resume_from, request.in_window) == ("resume", backup.path, False)
    assert request.config is run.request.config
    left = ready.app.preferences.now.left_run
    assert left is not None
    assert (left.run_dir, left.pid) == (str(run_dir), os.getpid())


@pytest.mark.parametrize("by", ["close", "quit"])
def test_a_window_that_ends_waits_for_the_backup_of_its_run(
    ready: Window, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Python unwound the thread that still trained, which aborted the process in torch's code, without a backup."""
    commands, written = CommandDesk(), list[str]()

    class Training(threading.Thread):
        def __init__(self) -> None:
            super().__init__(daemon=True)
            self.is_awaited = threading.Event()

        def run(self) -> None:
            with suppress(StopRequested):
                commands.check()  # waits
            self.is_awaited.wait(120)
            written.append("backup")

        def join(self, timeout: float | None = None) -> None:
            self.is_awaited.set()
            super().join(timeout)

    commands.put(Pause())
    handle = RunHandle(Training(), SimpleQueue(), commands)
    handle.thread.start()
    monkeypatch.setattr(ready.app.context.session, "_launch", lambda _request: handle)
    ready.app.starter.start()
    ready.wait_until(lambda: ready.app.context.session.is_active, "the run")
    assert not written
    ready.app.root.after(0, ready.app.close if by == "close" else ready.app.root.quit)
    if by == "close":
        ready.app.root.after(0, ready.app.root.quit)  # as its end does where the window owns it
    ready.app.run()
    assert written
    assert not handle.is_alive


@pytest.mark.parametrize("is_fault", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_and_closes_the_window(
    ready: Window, tmp_path: Path, number: int, *, is_fault: bool
) -> None:
    """Also where the run fails when it is stopped: there may be no one to read it."""
    run, root = begin(ready, write_run(tmp_path, NAME, [])), ready.app.root

    def follow() -> None:
        if ready.app._is_closed:
            root.quit()
            return
        if run.desk.is_stop_requested:
            run.end(RunFailed("The disk is full.") if is_fault else RunFinished("stopped", 2, "Stopped."))
        root.after(5, follow)

    root.after(0, os.kill, os.getpid(), number)
    root.after(0, follow)
    ready.app.run()
    assert run.desk.is_stop_requested
    assert ready.asked.asked("choose") == []


def test_a_run_without_a_backup_begins_again(ready: Window, detached: Starts) -> None:
    run = press_start(ready)
    ready.app.closing.ask()
    run.end(RunFinished("stopped", 0, "Stopped before the first step."))
    ready.wait_until(lambda: ready.app._is_closed)
    [request] = detached.requests
    assert (request.kind, request.resume_from, request.datasets) == ("train", None, None)


def test_a_run_that_finishes_meanwhile_is_not_continued(ready: Window, detached: Starts) -> None:
    run = press_start(ready)
    ready.app.closing.ask()
    run.end(RunFinished("finished", 400, "All done."))
    ready.wait_until(lambda: ready.app._is_closed)
    assert detached.requests == []


def test_a_report_on_images_is_not_continued_as_a_training(ready: Window, detached: Starts, tmp_path: Path) -> None:
    """A process of its own resumed the run whose images were compared, from its last backup."""
    run_dir = write_run(tmp_path, NAME, [])
    backup = write_backup(run_dir, step=2, epoch=1, now=datetime(2026, 3, 1), write=lambda f: None)
    session = ready.app.context.session
    session.begin(RunRequest(Config(), "report", backup.path))
    run = ready.engine.run
    assert run is not None
    run.emit(started(str(run_dir)))
    ready.wait_until(lambda: session.state.started is not None, "the start")
    assert session.form_config is None, "the settings of a report are no edits of the user"
    ready.asked.answers["choose"] = "stop"
    ready.app.closing.ask()
    [asked] = ready.asked.asked("choose")
    assert asked[2] == ["keep", "stop"]
    run.end(RunFinished("stopped", 0, "Stopped before the first step."))
    ready.wait_until(lambda: ready.app._is_closed)
    assert detached.requests == []


def test_closing_twice_asks_once(ready: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    run, closing, asked = press_start(ready), ready.app.closing, list[str]()

    def choose(title: str, *_question: object) -> str:
        asked.append(title)
        closing.ask()  # the window manager passes it on to the window under a dialog
        return "stop"

    monkeypatch.setattr(ready.asked, "choose", choose)
    closing.ask()
    assert len(asked) == 1
    run.end(RunFinished("stopped", 2, "Stopped."))
    ready.wait_until(lambda: ready.app._is_closed)


def test_a_run_that_does_not_stop_need_not_be_waited_for(ready: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download that hangs, or a full network disk: the window could only be killed."""
    run, ended = press_start(ready), list[str]()
    monkeypatch.setattr(ready.app.closing, "_end_now", lambda: ended.append("ended"))
    ready.asked.answers["choose"] = "stop"
    ready.app.closing.ask()
    ready.asked.answers["choose"] = "wait"
    ready.app.closing.ask()
    assert ready.asked.asked("choose")[-1][2] == ["wait", "end"]
    assert not ended
    ready.asked.answers["choose"] = "end"
    ready.app.closing.ask()
    assert ended
    run.end(RunFinished("stopped", 2, "Stopped."))
    ready.wait_until(lambda: ready.app._is_closed)


def test_the_window_stays_where_no_backup_could_be_written(ready: Window) -> None:
    """It closed, and the failure was never shown."""
    run = press_start(ready)
    ready.asked.answers["choose"] = "stop"
    ready.app.closing.ask()
    run.end(RunFailed("The disk is full."))
    ready.wait_until(lambda: ready.asked.asked("show_failure"), "the failure")
    ready.settle()
    assert not ready.app._is_closed
    ready.app.closing.ask()
    assert ready.app._is_closed


def test_the_window_stays_where_the_run_fails_or_the_process_cannot_start(ready: Window, detached: Starts) -> None:
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


def test_the_queue_is_continued_by_a_process_of_its_own(ready: Window, detached: Starts) -> None:
    """The run that trains is resumed by it, even if its end is recorded while the window closes."""
    file = begin_queue(ready)
    assert ready.engine.run is not None
    detached.error = OSError("no more processes")
    ready.app.closing.ask()
    [asked] = ready.asked.asked("choose")
    assert asked[2] == ["keep", "stop", "leave"]
    assert "trains its other items" in asked[1]
    ready.engine.run.end(RunFinished("stopped", 4, "Stopped after 4 steps."))
    ready.wait_until(lambda: ready.asked.asked("show_failure"), "the failure")
    ready.settle()
    assert not ready.app._is_closed
    assert ready.app.starter.can_start
    ready.wait_until(lambda: ready.app.queue.interrupted_item is not None, "the item that can be continued here")
    detached.error = None
    ready.app.queue.run()
    ready.wait_until(lambda: len(ready.engine.children) == 2, "the run again")
    ready.app.closing.ask()
    ready.engine.run.end(RunFinished("finished", 40, "Finished after 40 steps."))
    ready.wait_until(lambda: ready.app._is_closed)
    assert [item.state for item in file.read().items] == ["finished", "waiting"]
    assert file.runner is None
    assert detached.num_queues == 1
    assert not detached.trains_only_next
    left = ready.app.preferences.now.left_queue
    assert left is not None
    assert load_session(session_file()).settings.left_queue == left


@pytest.mark.parametrize(
    ("end", "states", "num_queues"),
    [
        (RunFinished("stopped", 4, "Stopped after 4 steps."), ["interrupted", "waiting"], 1),
        (RunFinished("finished", 40, "Finished after 40 steps."), ["finished", "waiting"], 0),
    ],
)
def test_a_queue_that_stops_after_its_run_stops_after_it_without_the_window_too(
    ready: Window, detached: Starts, end: RunFinished, states: list[str], num_queues: int
) -> None:
    """It trained all its other items."""
    file = begin_queue(ready)
    assert ready.engine.run is not None
    ready.app.queue.stop_after_current()
    ready.app.closing.ask()
    [asked] = ready.asked.asked("choose")
    assert "the queue stops after it" in asked[1]
    ready.engine.run.end(end)
    ready.wait_until(lambda: ready.app._is_closed)
    assert [item.state for item in file.read().items] == states
    assert (detached.num_queues, detached.trains_only_next) == (num_queues, num_queues == 1)
    left = ready.app.preferences.now.left_queue
    assert (left is not None and left.only_next) == (num_queues == 1), "for the next window"


def test_a_queue_that_has_just_stopped_after_its_run_is_not_continued_without_the_window(
    ready: Window, detached: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = begin_queue(ready)
    assert ready.engine.run is not None
    noted, answered, note = threading.Event(), threading.Event(), QueueRun.note

    def note_and_wait(run: QueueRun, item: Item, event: Any) -> Any:
        result = note(run, item, event)
        noted.set()
        answered.wait(120)
        return result

    monkeypatch.setattr(QueueRun, "note", note_and_wait)
    ready.app.queue.stop_after_current()
    ready.engine.run.end(RunFinished("finished", 40, "Finished after 40 steps."))
    ready.wait_until(noted.is_set, "the end of the run")
    ready.app.closing.ask()
    assert not ready.app._is_closed
    answered.set()
    ready.wait_until(lambda: ready.app._is_closed)
    assert [item.state for item in file.read().items] == ["finished", "waiting"]
    assert detached.num_queues == 0


@pytest.mark.parametrize("answer", ["leave", "stop"])
def test_a_queue_between_two_runs_is_not_interrupted_without_a_question(
    ready: Window, detached: Starts, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """The window closed at once, and its next item was interrupted before it had begun."""
    ready.asked.answers["choose"] = answer
    file = begin_queue(ready)
    assert ready.engine.run is not None
    taken, answered, take_next, ended = threading.Event(), threading.Event(), QueueRun.take_next, list[str]()

    def take_and_wait(run: QueueRun) -> Item | None:
        item = take_next(run)
        taken.set()
        answered.wait(120)
        return item

    monkeypatch.setattr(QueueRun, "take_next", take_and_wait)
    ready.engine.run.end(RunFailed("It failed."))
    ready.wait_until(taken.is_set, "the next item")
    ready.app.closing.ask()
    assert not ready.app._is_closed, "the item is still being taken"
    ready.asked.answers["choose"] = "end"
    monkeypatch.setattr(ready.app.closing, "_end_now", lambda: ended.append("ended"))
    ready.app.closing.ask()
    assert ended, "a disk that hangs need not be waited for"
    answered.set()
    ready.wait_until(lambda: ready.app._is_closed)
    question, _about_the_wait = ready.asked.asked("choose")
    assert "about to train its next item" in question[1]
    assert [item.state for item in file.read().items] == ["failed", "waiting"]
    assert file.runner is None
    assert len(ready.engine.children) == 1
    assert detached.num_queues == (answer == "leave")


def test_what_a_leaving_window_wrote_at_once_is_not_written_again(
    ready: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window may stay and run the queue again: an older state would replace the newer one."""
    queue, jobs, written = ready.app.queue, list[Callable[[], object]](), list[str]()
    later = SimpleNamespace(run=lambda work, _done, _failed: jobs.append(work))
    monkeypatch.setattr(queue, "_background", later)
    queue._write(lambda: written.append("interrupted"), lambda _queue: None)  # type: ignore[func-returns-value]
    queue.hand_over()
    jobs[0]()
    assert written == ["interrupted"]


def test_the_next_window_follows_the_runs_of_the_queue(
    open_window: Callable[..., Window], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One after another, and none of them takes the page that is open; nothing else can start meanwhile."""
    monkeypatch.setattr(attached, "_POLL_SECONDS", 0.01)
    file = QueueFile(queue_file())
    for name in ("one", "two"):
        file.change(lambda now, name=name: now.add(name, Config()))  # type: ignore[misc]
    run_dirs = [write_run(tmp_path, f"2026-03-0{n}_12-00-00", [(0.0, started(str(tmp_path)))]) for n in (1, 2)]
    window = open_window()

    def change(change: Change) -> None:
        file.change(change)
        window.app.queue.refresh()

    process = Holder.of(os.getpid())
    left = LeftProcess(pid=process.pid, started=process.started, log="", only_next=True)
    window.app.preferences.change(left_queue=left)
    session, queue, pages = window.app.context.session, QueueRun(file), window.app.context.navigation
    for number, run_dir in enumerate(run_dirs, start=1):
        change(lambda now: now.begin(number).with_run_dir(number, str(run_dir)))  # noqa: B023 - called at once
        window.wait_until(lambda: session.is_reserved, "the queue")
        window.settle()
        assert not session.is_active, "it does not train yet"
        bar = window.app.shell.bottom_bar
        window.app.starter.resumable = BackupInfo(run_dirs[0] / "backup/step-00000005", 5, 1, "2026-03-01T12:00:00")
        bar.refresh()
        assert (bar.phase.cget("text"), bar.start.cget("state")) == ("Starting", "disabled")
        assert not bar.second.winfo_manager(), "Resume would do nothing"
        assert "outside this window, and stops after this run" in status_line(window.app.queue)
        lock = RunLock(run_dir)
        change(lambda now: now.with_run_dir(number, str(run_dir)))  # noqa: B023 - as the start of the run does
        window.wait_until(lambda: session.attached is not None, "its run")
        assert session.state.started is not None
        assert pages.page == ("run" if number == 1 else "queue")
        pages.open("queue")
        window.app.queue.skip(window.app.queue.queue.running)
        window.wait_until(lambda: (run_dir / inbox.INBOX_FILE).is_file(), "the stop")  # noqa: B023 - called at once
        assert file.read().item(number).is_skipped
        with (run_dir / "events.jsonl").open("a") as log:
            log.write(to_line(RunFinished("finished", 40, "Finished.")) + "\n")
        lock.release()
        window.wait_until(lambda: session.stage == "idle", "its end")
        assert window.app.starter.why_not == "The queue is running."
        change(lambda now: now.end(number, RunStatus.FINISHED, ""))  # noqa: B023 - called at once
    window.wait_until(lambda: all(item.has_ended for item in window.app.queue.queue.items), "the last item")
    window.settle()
    queue.close()  # without another change of the file
    window.wait_until(lambda: window.app.starter.can_start, "the end of the queue")


def test_the_next_window_follows_it_and_controls_it(
    open_window: Callable[..., Window], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its curve begins at the first step, commands arrive, and closing again asks nothing of it."""
    monkeypatch.setattr(attached, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(inbox, "_POLL_SECONDS", 0.01)
    first = [(0.0, started(str(tmp_path))), (1.0, PhaseChanged("training")), *((1.0 + n, step(n)) for n in (1, 2, 3))]
    run_dir = write_run(tmp_path, NAME, first)
    lock, commands = RunLock(run_dir), CommandDesk()
    window = open_window()
    session, closing = window.app.context.session, window.app.closing
    process = DetachedProcess(Holder.of(os.getpid()), tmp_path / "child.log")
    left = LeftProcess(
        pid=process.process.pid, started=process.process.started, log=str(process.log), run_dir=str(run_dir)
    )
    window.app.preferences.change(left_run=left)
    closing.look()
    window.wait_until(lambda: session.is_active, "the attached run")
    assert session.attached is not None
    assert window.app.context.navigation.page == "run"
    assert window.app.preferences.now.left_run == left, "for the window after this one"
    with (run_dir / "events.jsonl").open("a") as file:
        file.write(to_line(step(4)) + "\n" + to_line(step(5))[:20])
    window.wait_until(lambda: len(session.state.curve("loss")) == 4, "the next step")
    assert [number for number, _ in session.state.curve("loss")] == [1, 2, 3, 4]
    with inbox.open_inbox(process.inbox_file, commands):
        session.pause()
        window.wait_until(lambda: commands.is_paused, "the pause")
        session.stop()
        window.wait_until(lambda: commands.is_stop_requested, "the stop")
    with (run_dir / "events.jsonl").open("a") as file:
        file.write(to_line(step(5))[20:] + "\n" + to_line(RunFinished("stopped", 5, "Stopped.")) + "\n")
    lock.release()
    window.wait_until(lambda: session.stage == "idle", "the end")
    assert session.state.finished is not None
    assert session.state.finished.outcome == "stopped"
    assert len(session.state.curve("loss")) == 5
    assert session.attached is None


@pytest.mark.parametrize("is_reopened", [False, True])
def test_closing_leaves_a_followed_run_alone(
    open_window: Callable[..., Window], tmp_path: Path, is_reopened: bool
) -> None:
    run_dir = write_run(tmp_path, NAME, [(0.0, started(str(tmp_path))), (1.0, PhaseChanged("paused"))])
    export_file(replace_value(config_of(run_dir), "output.destination", "zog-2.safetensors"), run_dir / "config.json")
    note_destination(run_dir, asked="zog.safetensors", chosen="zog-2.safetensors")
    lock, window = RunLock(run_dir), open_window()
    session = window.app.context.session
    if is_reopened:  # its settings are in the window, with the destination that the run has
        window.app.form.edit("output.destination", "zog-2.safetensors")
    window.app.closing.follow(run_dir)
    window.wait_until(lambda: session.is_active, "the attached run")
    assert session.config is not None
    is_unchanged = session.config.output.destination == ("zog-2.safetensors" if is_reopened else "zog.safetensors")
    assert is_unchanged, "as in the settings, which have not changed"
    assert session.stage == "paused"
    window.asked.answers["choose"] = "leave"
    window.app.closing.ask()
    assert window.app._is_closed
    assert not (run_dir / inbox.INBOX_FILE).exists()
    lock.release()


@pytest.mark.parametrize("of", ["another window", "the window before", "a window with other settings", "the queue"])
def test_only_the_edits_of_a_run_of_the_form_are_named(
    open_window: Callable[..., Window], tmp_path: Path, of: str
) -> None:
    """The run of another window or of the queue has settings of its own, and none was changed since its start.

    So has the run of the window before, if this one opens with a config file.
    """
    save_file(Config(), tmp_path / "other.json")
    window = open_window(tmp_path / "other.json" if of == "a window with other settings" else None)
    page: Any = window.open_page("run")
    session, form = window.app.context.session, window.app.form
    run_dir = write_run(tmp_path, NAME, [(0.0, started(str(tmp_path))), (1.0, PhaseChanged("training"))])
    lock = RunLock(run_dir)
    if of == "another window":
        window.app.closing.follow(run_dir)
    elif of == "the queue":
        QueueFile(queue_file()).change(lambda now: now.add("one", Config()))
        window.app.queue.run()
    else:
        process = Holder.of(os.getpid())
        left = LeftProcess(pid=process.pid, started=process.started, log="run.log", run_dir=str(run_dir))
        window.app.preferences.change(left_run=left)
        window.app.closing.look()
    window.wait_until(lambda: session.is_active, "the run")
    form.edit("training.epochs", form.config.training.epochs + 1)
    window.settle()
    is_of_form = of == "the window before"
    assert bool(page.notices.edits) == is_of_form
    window.app.shell.bottom_bar._count_edits()
    assert bool(window.app.shell.bottom_bar._num_edits) == is_of_form
    lock.release()


def test_the_queue_shows_its_runs_on_other_machines(open_window: Callable[..., Window], tmp_path: Path) -> None:
    """A notice named them as runs of another program, between two runs of the queue here."""
    file, window = QueueFile(queue_file()), open_window()
    runner = QueueRun(file, "box")
    file.change(lambda now: now.add("zog", Config(), machine="box").begin(1).with_run_dir(1, str(tmp_path)))
    window.app.queue.refresh()
    window.wait_until(lambda: window.app.queue.queue.items, "the queue")
    assert window.app.closing.left_runs() == (None, None, tmp_path)
    runner.close()


def test_a_process_that_has_ended_is_not_followed(open_window: Callable[..., Window], tmp_path: Path) -> None:
    window = open_window()
    window.app.preferences.change(left_run=LeftProcess(pid=os.getpid(), started=1.0, log="", run_dir=str(tmp_path)))
    window.app.closing.look()
    assert window.app.preferences.now.left_run is None


def test_a_killed_process_is_a_failure(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, NAME, [(0.0, started(str(tmp_path)))])
    _state, num_bytes = read_state_so_far(run_dir)
    run = AttachedRun(run_dir, from_byte=num_bytes)
    run.thread.join(120)
    assert not run.is_alive
    failed = run.events.get_nowait()
    assert isinstance(failed, RunFailed)
    assert failed.message == read_record(run_dir).message
    assert failed.status is read_record(run_dir).status is RunStatus.CRASHED


def test_a_run_on_another_machine_is_followed_again_if_its_follower_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was called crashed, while it trained on."""
    monkeypatch.setattr(attached, "_POLL_SECONDS", 0.01)
    run_dir = write_run(tmp_path, NAME, [(0.0, started(str(tmp_path)))])
    note_elsewhere(run_dir, Elsewhere("box", "job", "/r/job", str(tmp_path / "lora.safetensors")))
    process = DetachedProcess(Holder(0, 0.0, platform.node()), tmp_path / "child.log")
    refused = RunFailed("box cannot be reached.", "Try again.")
    process.events_file.write_text("".join(f"{to_line(event)}\n" for event in (step(1), refused)))
    again: list[Path] = []
    monkeypatch.setattr(attached, "start_following", lambda run_dir: (again.append(run_dir), process)[1])
    sent: list[Path] = []
    monkeypatch.setattr(inbox, "send", lambda path, _command: sent.append(path))
    lock = RunLock(run_dir)
    run = AttachedRun(run_dir, from_byte=read_state_so_far(run_dir)[1])
    run.send(Stop())
    lock.release()
    run.thread.join(120)
    assert not run.is_alive
    assert again == [run_dir], "once: the second one could not connect"
    assert sent == [run_dir / inbox.INBOX_FILE, process.inbox_file], "the stop, which may have been lost"
    events = [run.events.get_nowait() for _ in range(3)]
    assert isinstance(events[0], WarningRaised)
    assert "box" in events[0].message
    assert events[1:] == [step(1), refused]


def test_a_run_that_another_program_follows_again_first_is_followed_by_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two windows one was refused: it showed a failure, and its commands reached no run."""
    monkeypatch.setattr(attached, "_POLL_SECONDS", 0.01)
    run_dir = write_run(tmp_path, NAME, [(0.0, started(str(tmp_path)))])
    note_elsewhere(run_dir, Elsewhere("box", "job", "/r/job", str(tmp_path / "lora.safetensors")))
    process = DetachedProcess(Holder(0, 0.0, platform.node()), tmp_path / "child.log")
    locks = [RunLock(run_dir)]

    def follow_again(run_dir: Path) -> DetachedProcess:
        if len(locks) == 1:
            locks.append(RunLock(run_dir))
            process.events_file.write_text(f"{to_line(RunFailed('The run is in use.'))}\n")
            with (run_dir / "events.jsonl").open("a") as file:
                file.write(f"{to_line(step(2))}\n")
        return process

    monkeypatch.setattr(attached, "start_following", follow_again)
    sent: list[Path] = []
    monkeypatch.setattr(inbox, "send", lambda path, _command: sent.append(path))
    run = AttachedRun(run_dir, from_byte=read_state_so_far(run_dir)[1])
    locks[0].release()
    events = [run.events.get(timeout=120) for _ in range(2)]
    assert isinstance(events[0], WarningRaised)
    assert events[1] == step(2)
    run.send(Pause())
    assert sent == [run_dir / inbox.INBOX_FILE]
    run.leave()
    run.thread.join(120)
    locks[1].release()


def test_a_run_that_finished_before_it_was_followed_has_not_failed(tmp_path: Path) -> None:
    done = RunFinished("finished", 400, "All done.")
    run_dir = write_run(tmp_path, NAME, [(0.0, started(str(tmp_path))), (1.0, done)])
    run = AttachedRun(run_dir, from_byte=read_state_so_far(run_dir)[1])
    run.thread.join(120)
    assert run.events.get_nowait() == done


def test_a_run_that_another_process_resumes_is_starting_until_it_writes(tmp_path: Path) -> None:
    """The status was "Ready", next to Pause and Stop."""
    stopped = RunFinished("stopped", 40, "Stopped.")
    events = [(0.0, started(str(tmp_path))), (1.0, PhaseChanged("training")), (2.0, stopped)]
    run_dir = write_run(tmp_path, NAME, events)
    assert read_state_so_far(run_dir)[0].phase == "starting"
    with (run_dir / "events.jsonl").open("a") as file:
        file.write(to_line(PhaseChanged("caching")) + "\n")
    assert read_state_so_far(run_dir)[0].phase == "caching"


def test_another_process_stops_a_run(config: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command of an earlier attempt does nothing."""
    monkeypatch.setattr(inbox, "_POLL_SECONDS", 0.01)
    sent: list[int] = []

    def listen(event: Any, send: Any) -> None:
        if isinstance(event, StepFinished) and not sent:
            sent.append(event.step)
            (folder,) = (Path(config.general.workspace_dir) / "runs").iterdir()
            inbox.send(folder / inbox.INBOX_FILE, Stop())
            wait_for(lambda: send.__self__.is_stop_requested)  # the whole run takes less than a second

    ran = run_here(config, on_event=listen)
    assert ran.finished.outcome == "stopped"
    (folder,) = (Path(config.general.workspace_dir) / "runs").iterdir()
    assert not (folder / inbox.INBOX_FILE).exists()
    inbox.send(folder / inbox.INBOX_FILE, Pause())
    ran = run_here(config, resume_from=folder, on_event=listen)
    assert ran.finished.outcome == "finished"


def test_a_run_that_outlives_the_window_is_noted_when_it_starts(
    ready: Window, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Commands reach it before it has a folder, and leaving it requires no backup."""
    process = DetachedProcess(Holder.of(os.getpid()), tmp_path / "child.log")
    monkeypatch.setattr(ready.app.context.session, "_launch", lambda _request: AttachedRun(None, detached=process))
    ready.app.starter.start()
    session = ready.app.context.session
    ready.wait_until(lambda: session.is_active, "the run")
    left = ready.app.preferences.now.left_run
    assert left == LeftProcess(pid=process.process.pid, started=process.process.started, log=str(process.log))
    ready.wait_until(lambda: _saved_left_run() == left, "the saved session")
    commands = CommandDesk()
    session.pause()
    with inbox.open_inbox(process.inbox_file, commands):
        ready.wait_until(lambda: commands.is_paused, "the pause")
    process.events_file.write_text("".join(to_line(e) + "\n" for e in (started(str(tmp_path)), step(1))))
    ready.wait_until(lambda: session.state.step is not None, "a step")
    assert process.run_dir() == tmp_path
    ready.asked.answers["choose"] = "leave"
    ready.app.closing.ask()
    assert ready.app._is_closed
    assert _saved_left_run() == left


def _saved_left_run() -> LeftProcess | None:
    return load_session(session_file()).settings.left_run


def test_a_process_without_a_run_yet_is_followed_from_its_first_event(
    open_window: Callable[..., Window], tmp_path: Path
) -> None:
    process, window = DetachedProcess(Holder.of(os.getpid()), tmp_path / "child.log"), open_window()
    process.events_file.write_text(to_line(PhaseChanged("loading")) + "\n")
    left = LeftProcess(pid=process.process.pid, started=process.process.started, log=str(process.log))
    window.app.preferences.change(left_run=left)
    window.app.closing.look()
    session = window.app.context.session
    window.wait_until(lambda: session.state.phase == "loading", "the first event")
    assert session.stage == "running"
    with process.events_file.open("a") as file:
        file.write(to_line(RunFailed("There is no model.")) + "\n")
    window.wait_until(lambda: session.state.failed, "the failure")
    window.app.context.session.leave()


def test_another_window_does_not_follow_the_run_of_one_that_is_open(
    open_window: Callable[..., Window], tmp_path: Path
) -> None:
    first = open_window()
    first.app.preferences.change(
        left_run=LeftProcess(pid=os.getpid(), started=1.0, log="", run_dir=str(tmp_path)), scale_percent=100
    )
    first.app.save_session()
    second = take_session(session_file())
    assert second.last.settings.left_run is None
    assert second.last.settings.scale_percent == 100
    second.release()


def test_a_process_that_was_refused_reports_its_words(tmp_path: Path) -> None:
    ended = DetachedProcess(Holder(os.getpid(), 1.0, platform.node()), tmp_path / "child.log")
    ended.log.write_text("There is no file x.json\n")
    run = AttachedRun(None, detached=ended)
    run.thread.join(120)
    failed = run.events.get_nowait()
    assert isinstance(failed, RunFailed)
    assert failed.message == "There is no file x.json"
    assert failed.details_path == str(ended.log)


def test_the_files_of_a_process_that_ended_as_it_should_are_removed(tmp_path: Path) -> None:
    done = RunFinished("finished", 400, "All done.")
    ended = DetachedProcess(Holder(os.getpid(), 1.0, platform.node()), tmp_path / "child.log")
    for file in (ended.log, ended.config_file, ended.inbox_file):
        file.write_text("")
    ended.events_file.write_text(f"{to_line(done)}\n")
    run = AttachedRun(None, detached=ended)
    run.thread.join(120)
    assert run.events.get_nowait() == done
    assert not list(tmp_path.iterdir())


@pytest.fixture
def config(tiny_sd: Path, images: Path, tmp_path: Path) -> Any:
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
    wait(window, lambda: session.attached, "the run that continued")
    wait(window, lambda: session.state.step is not None and session.state.step.step > left_at.step + 2, "its steps")
    again.shell.bottom_bar.start.invoke()
    wait(window, lambda: session.stage == "idle", "the stop")
    assert session.state.finished is not None
    assert session.state.finished.outcome == "stopped"
    steps = [number for number, _ in session.state.curve("loss")]
    assert steps == list(range(1, session.state.finished.step + 1))
    again.close()


def leave_queue(config: Any, open_window: Callable[..., Window], epochs: Sequence[int]) -> tuple[QueueFile, Window]:
    """Close a window while it trains the first item of its queue, and return the queue and the next window."""
    file = QueueFile(queue_file())
    for number, epochs_of_item in enumerate(epochs, start=1):
        path = f"{config.output.destination}.{number}.safetensors"
        item = replace_value(replace_value(config, "output.destination", path), "training.epochs", epochs_of_item)
        file.change(lambda now, item=item, number=number: now.add(f"item {number}", item))  # type: ignore[misc]
    before = open_window()
    before.app.queue._launch = launch_child
    before.app.queue.run()
    session = before.app.context.session
    wait(before, lambda: session.state.step is not None, "the first step")
    before.asked.answers["choose"] = "leave"
    before.app.closing.ask()
    wait(before, lambda: before.app._is_closed, "the close")
    return file, open_window()


@pytest.mark.slow
@pytest.mark.full
def test_the_queue_trains_on_without_its_window(config: Any, open_window: Callable[..., Window]) -> None:
    """The run that was training is resumed, the others follow, and the next window shows them."""
    file, after = leave_queue(config, open_window, (20, 20))
    session, ends = after.app.context.session, []

    def note() -> None:
        if session.state.finished is not None and session.state.finished not in ends:
            ends.append(session.state.finished)

    session.changed.subscribe(note)
    wait(after, lambda: len(ends) == 2, "the end of both runs")
    assert [end.outcome for end in ends] == ["finished", "finished"]
    wait(after, lambda: after.app.starter.can_start, "the end of the queue")
    assert [item.state for item in file.read().items] == ["finished", "finished"]
    steps = [len(read_state_so_far(Path(item.run_dir))[0].curve("loss")) for item in file.read().items]
    assert steps == [end.step for end in ends]


@pytest.mark.slow
@pytest.mark.full
def test_the_next_window_skips_an_item_of_the_queue_and_stops_another(
    config: Any, open_window: Callable[..., Window]
) -> None:
    """Stop ends the queue, too; what was skipped and stopped can be resumed."""
    file, after = leave_queue(config, open_window, (5000, 5000, 20))
    session, bar, page = after.app.context.session, after.app.shell.bottom_bar, after.open_page("queue")
    wait(after, lambda: session.attached and session.state.step, "the first item")
    after.settle()
    page.buttons["skip"].invoke()  # type: ignore[attr-defined]
    wait(after, lambda: file.read().item(2).run_dir, "the second item")
    run_dir = file.read().item(2).run_dir
    wait(after, lambda: session.state.started and session.state.started.run_dir == run_dir, "its run")
    wait(after, lambda: session.state.step, "a step")
    after.settle()
    assert bar.start.cget("text") == "Stop"
    bar.start.invoke()
    wait(after, lambda: after.app.starter.can_start, "the end of the queue")
    assert [item.state.label for item in file.read().items] == ["Stopped", "Stopped", "Waiting"]
    assert bar.phase.cget("text") == "Stopped"
    assert all(list_backups(Path(item.run_dir)) for item in file.read().items[:2])


# A window that starts its config, as a press on Start does.
_STARTING = """
import sys
from pathlib import Path
from types import SimpleNamespace
from tests.ui.recorder import Recorder
from ui.app.window import App
app = App(config_path=Path(sys.argv[1]), interaction=Recorder())
app.show()
while app.context.form.awaited:
    app.context.pump.tick()
app.starter.start()
app.run()
"""


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to kill with")
def test_a_killed_window_does_not_end_its_run(config: Any, open_window: Callable[..., Window], tmp_path: Path) -> None:
    """The next window follows it to its end, and the result is bit-equal to that of a thread."""
    config = replace_value(replace_value(config, "general.num_threads", 1), "training.epochs", 40)
    config = replace_value(config, "sampling.prompts", ())
    apart = replace_value(config, "general.separate_process", True)
    apart = replace_value(apart, "output.destination", str(tmp_path / "apart.safetensors"))
    export_file(apart, tmp_path / "apart.json")
    with subprocess.Popen([sys.executable, "-c", _STARTING, str(tmp_path / "apart.json")]) as window:
        runs = Path(config.general.workspace_dir) / "runs"
        wait_for(lambda: any('"step": 5,' in file.read_text() for file in runs.glob("*/events.jsonl")))
        window.send_signal(signal.SIGKILL)
    [run_dir] = runs.iterdir()
    assert holder_of(run_dir) is not None, "it trains on"
    after = open_window()
    session = after.app.context.session
    wait(after, lambda: session.attached, "the run, followed")
    wait(after, lambda: session.stage == "idle", "its end")
    assert session.state.finished is not None
    assert session.state.finished.outcome == "finished"
    steps = session.state.finished.step
    assert [number for number, _ in session.state.curve("loss")] == list(range(1, steps + 1))
    assert after.app.preferences.now.left_run is not None
    ran = run_here(config)
    assert ran.finished.step == steps
    theirs, ours = (load_file(str(tmp_path / f"{name}.safetensors")) for name in ("apart", "lora"))
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)


def wait_for(condition: Callable[[], object]) -> None:
    """Wait for another process."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_run_that_cannot_be_followed_is_reported(ready: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing happened, and only the log had the reason."""

    def start(_run_dir: Path, *, resumes: bool) -> DetachedProcess:
        raise OSError("no more processes")

    monkeypatch.setattr(attached, "start_following", start)
    ready.app.closing.follow_elsewhere(Path("run"))
    ready.wait_until(lambda: ready.asked.asked("show_failure"), "the failure")
    [[failure]] = ready.asked.asked("show_failure")
    assert "no more processes" in failure.message
