"""The session: one run after another, each from a fresh state."""

from __future__ import annotations

import gc
import inspect
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from modules.config.schema import Config
from modules.config.sections.general import MultiGpu
from tests.ui.fake_engine import FakeEngine, started, step
from trainer.child import run as child_run
from trainer.commands import BackupNow, SampleNow
from trainer.event_lines import to_line
from trainer.events import Event, PhaseChanged, RunFailed, RunFinished, SampleProgress, SampleReady
from trainer.launch import RunRequest
from trainer.preflight import Progress, Report
from trainer.run_folder.backup import write_backup
from trainer.run_folder.event_log import EVENTS_FILE
from trainer.run_status import CRASH_MESSAGE
from ui.app.window import App
from ui.loop.background import Background
from ui.loop.run_session import MAX_BACKLOG, RunSession, newest_of_each


def soon() -> float:
    return time.perf_counter() + 5.0


@pytest.mark.parametrize(("num_devices", "expected"), [(1, "thread"), (2, "child")])
def test_the_window_starts_a_run_of_several_devices_in_processes(
    monkeypatch: pytest.MonkeyPatch, num_devices: int, expected: str
) -> None:
    launched: list[str] = []
    monkeypatch.setattr(child_run, "launch", lambda request: launched.append("thread"))
    monkeypatch.setattr(child_run, "launch_child", lambda request: launched.append("child"))
    devices = MultiGpu(enabled=num_devices > 1, device_indexes=",".join(map(str, range(num_devices))))
    launch_run = inspect.signature(App).parameters["launch_run"].default
    launch_run(RunRequest(Config(multi_gpu=devices)))
    assert launched == [expected]


class Desk:
    """A session with a scripted engine and a scripted check."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.background = Background()
        self.report = Report((), None)
        self.session = RunSession(
            self.background,
            launch_run=self.engine.launch,
            check_config=lambda config, **_: self.report,
            wall_clock=lambda: 0.0,
        )
        self.stages: list[str] = []
        self.session.changed.subscribe(lambda: self.stages.append(self.session.stage))

    def drain(self) -> None:
        self.session.drain(soon())

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            self.background.drain(soon())
            self.drain()
            assert time.monotonic() < deadline

    def all_looked(self) -> None:
        """Wait until both background threads have finished their jobs."""
        meeting, done = threading.Barrier(2), list[object]()
        for _ in range(2):
            self.background.run(meeting.wait, done.append)
        self.wait_until(lambda: len(done) == 2)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_run_from_start_to_end(desk: Desk) -> None:
    desk.session.begin(RunRequest(Config()))
    assert desk.session.stage == "running"
    run = desk.engine.run
    assert run is not None
    run.emit(started(), PhaseChanged("training"), step(1))
    desk.drain()
    assert desk.session.state.step is not None
    run.end(RunFinished("finished", 400, "All done."))
    desk.drain()
    assert desk.session.stage == "idle"
    assert not desk.session.is_active
    assert desk.session.state.finished is not None


def sample(number: int, path: str = "") -> SampleReady:
    return SampleReady(number, 0, "a disc", path or f"/tmp/{number}.png")


def test_a_resumed_run_shows_its_history(desk: Desk, tmp_path: Path) -> None:
    """Two attempts; the second was resumed at step 2. Events after the backup do not belong to this run."""
    reported = [step(1), step(2), sample(2, "/tmp/old.png"), step(3, loss=9.0), sample(3), step(2, loss=0.5), sample(2)]
    lines = [to_line(event) for event in (started(), *reported)]
    (tmp_path / EVENTS_FILE).write_text("\n".join([*lines, "half a li"]), encoding="utf-8")
    now = datetime(2026, 1, 1)
    backup = write_backup(tmp_path, step=2, epoch=1, now=now, write=lambda f: (f / "x").touch())
    desk.session.begin(RunRequest(Config(), "resume", resume_from=backup.path))
    assert desk.engine.run is not None
    desk.engine.run.emit(started(first_step=2), step(3), sample(3, "/tmp/new.png"))
    desk.wait_until(lambda: len(desk.session.state.curve("loss")) == 3)
    state = desk.session.state
    assert list(state.curve("loss")) == [(1, 0.6), (2, 0.5), (3, step(3).loss)]
    assert [s.path for s in state.samples] == ["/tmp/2.png", "/tmp/new.png"]
    assert state.step == step(3)
    desk.engine.run.end(RunFinished("finished", 3, "Done."))
    desk.drain()


def test_the_history_does_not_leak_into_another_run(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / EVENTS_FILE).write_text(to_line(step(1)), encoding="utf-8")
    now = datetime(2026, 1, 1)
    backup = write_backup(tmp_path, step=1, epoch=1, now=now, write=lambda f: (f / "x").touch())
    desk.session.begin(RunRequest(Config(), "resume", resume_from=backup.path))
    assert desk.engine.run is not None
    desk.engine.run.end(RunFinished("finished", 1, "Done."))
    desk.drain()
    desk.session.begin(RunRequest(Config()))
    desk.all_looked()
    assert desk.session.state.series == {}
    desk.engine.run.end(RunFinished("finished", 1, "Done."))
    desk.drain()


def test_events_that_wait_after_the_thread_ended_are_not_lost(desk: Desk) -> None:
    desk.session.begin(RunRequest(Config()))
    assert desk.engine.run is not None
    desk.engine.run.end(started(), *(step(n) for n in range(1, 50)), RunFinished("finished", 49, "Done."))
    desk.drain()
    assert len(desk.session.state.curve("loss")) == 49
    assert desk.session.stage == "idle"


def test_a_thread_that_ends_unexpectedly_is_a_failure(desk: Desk) -> None:
    desk.session.begin(RunRequest(Config()))
    assert desk.engine.run is not None
    desk.engine.run.end(started())
    desk.drain()
    assert desk.session.stage == "idle"
    assert desk.session.state.failed is not None
    assert desk.session.state.failed.advice.endswith("It has no backup: start it again.")


@pytest.mark.parametrize("reported", [[], [RunFailed(CRASH_MESSAGE)]])
def test_an_unexpected_end_names_the_backup_that_there_is(desk: Desk, tmp_path: Path, reported: list[Event]) -> None:
    backup = write_backup(tmp_path, step=2, epoch=1, now=datetime(2026, 1, 1), write=lambda f: (f / "x").touch())
    desk.session.begin(RunRequest(Config()))
    assert desk.engine.run is not None
    desk.engine.run.end(replace(started(), run_dir=str(tmp_path)), *reported)
    desk.drain()
    failed = desk.session.state.failed
    assert failed is not None
    assert failed.backup_path == str(backup.path)
    assert reported or "backup of step 2" in failed.advice


def test_a_resumed_run_that_never_began_can_be_resumed_again(desk: Desk, tmp_path: Path) -> None:
    backup = write_backup(tmp_path, step=2, epoch=1, now=datetime(2026, 1, 1), write=lambda f: (f / "x").touch())
    desk.session.begin(RunRequest(Config(), "resume", resume_from=backup.path))
    assert desk.engine.run is not None
    desk.engine.run.end()
    desk.drain()
    assert desk.session.state.failed is not None
    assert desk.session.state.failed.backup_path == str(backup.path)


def test_stop_pause_and_unpause_are_sent(desk: Desk) -> None:
    session = desk.session
    session.begin(RunRequest(Config()))
    run = desk.engine.run
    assert run is not None
    session.pause()
    assert (session.stage, run.desk.is_paused) == ("paused", True)
    session.unpause()
    assert (session.stage, run.desk.is_paused) == ("running", False)
    session.send(SampleNow())
    assert run.desk.take(SampleNow)
    session.stop()
    assert (session.stage, run.desk.is_stop_requested) == ("stopping", True)
    session.pause()
    assert session.stage == "stopping"
    run.end(RunFinished("stopped", 3, "Stopped."))
    desk.drain()
    assert session.stage == "idle"
    assert desk.stages == ["running", "paused", "running", "stopping", "idle"]


def test_a_run_that_was_continued_before_its_pause_was_reported_is_not_shown_as_paused(desk: Desk) -> None:
    """Continue at once after Pause: the window showed "Paused" over a run that trained on."""
    session = desk.session
    session.begin(RunRequest(Config()))
    run = desk.engine.run
    assert run is not None
    run.emit(PhaseChanged("training"))
    session.drain(soon())
    session.pause()
    run.emit(PhaseChanged("sampling"))
    session.drain(soon())
    assert session.stage == "paused", "it has not paused yet"
    session.unpause()
    run.emit(PhaseChanged("paused"), PhaseChanged("sampling"))
    session.drain(soon())
    assert session.stage == "running"
    session.pause()
    run.emit(PhaseChanged("paused"), PhaseChanged("paused", "the card's memory is free"), PhaseChanged("paused"))
    session.drain(soon())
    assert session.stage == "paused"
    run.emit(PhaseChanged("sampling"))  # continued elsewhere, as on the web page
    session.drain(soon())
    assert session.stage == "running"
    run.end()


def test_commands_without_a_run_do_nothing(desk: Desk) -> None:
    for command in (desk.session.stop, desk.session.pause, desk.session.unpause):
        command()
    desk.session.send(BackupNow())
    assert desk.session.stage == "idle"


def test_a_second_run_starts_fresh(desk: Desk) -> None:
    for total in (400, 80):
        desk.session.begin(RunRequest(Config()))
        assert desk.engine.run is not None
        desk.engine.run.emit(started(total_steps=total), step(1))
        desk.drain()
        assert desk.session.state.started is not None
        assert desk.session.state.started.total_steps == total
        assert len(desk.session.state.curve("loss")) == 1
        desk.engine.run.end(RunFinished("finished", 1, "Done."))
        desk.drain()
    assert len(desk.engine.requests) == 2


def test_nothing_of_a_finished_run_stays_alive(desk: Desk) -> None:
    desk.session.begin(RunRequest(Config()))
    run = desk.engine.run
    assert run is not None
    traces = [weakref.ref(run.handle.thread), weakref.ref(run.desk), weakref.ref(run)]
    run.emit(started(), step(1))
    desk.drain()
    run.end(RunFinished("finished", 1, "Done."))
    desk.engine.run = None
    del run
    desk.drain()
    gc.collect()
    assert [trace() for trace in traces] == [None, None, None]


def test_a_check_comes_back_with_its_report(desk: Desk) -> None:
    reports: list[Report] = []
    desk.session.check(RunRequest(Config()), reports.append)
    assert desk.session.stage == "checking"
    desk.wait_until(lambda: reports)
    assert reports == [desk.report]
    assert desk.session.stage == "idle"


def test_a_check_that_breaks_leaves_the_session_idle(desk: Desk) -> None:
    def broken(config: Config, **_: object) -> Report:
        raise OSError("disk on fire")

    session = RunSession(desk.background, check_config=broken)
    failures: list[Exception] = []
    session.check(RunRequest(Config()), lambda _report: None, failures.append)
    desk.wait_until(lambda: failures)
    assert session.stage == "idle"


def test_a_check_that_takes_long_shows_its_work_and_can_be_stopped(desk: Desk) -> None:
    seconds, ended, reports = [0.0], threading.Event(), list[Report]()

    def endless(config: Config, *, progress: Progress, **_: object) -> Report:
        try:
            while True:
                progress("estimating memory", 0, 1)
                time.sleep(0.001)
        finally:
            ended.set()

    session = RunSession(desk.background, check_config=endless, wall_clock=lambda: seconds[0])
    seen: list[str] = []
    session.changed.subscribe(lambda: seen.append(session.work_of_check))
    session.check(RunRequest(Config()), reports.append)
    session.stop()  # the second click of a double click on Start
    assert session.stage == "checking"
    seconds[0] = 2.0
    desk.wait_until(lambda: session.can_stop)
    assert session.work_of_check == "estimating memory"
    session.stop()
    assert (session.stage, session.can_stop, session.work_of_check) == ("idle", False, "")
    assert ended.wait(120)
    desk.all_looked()
    assert reports == []


def test_every_step_is_a_point_of_the_curve(desk: Desk) -> None:
    desk.session.begin(RunRequest(Config()))
    assert desk.engine.run is not None
    desk.engine.run.emit(*(step(n) for n in range(1, 101)))
    desk.drain()
    assert len(desk.session.state.curve("loss")) == 100


def test_a_flood_of_progress_is_coalesced(desk: Desk) -> None:
    desk.session.begin(RunRequest(Config()))
    assert desk.engine.run is not None
    last = MAX_BACKLOG * 10
    desk.engine.run.emit(*(step(n, epoch_steps=last) for n in range(1, last + 1)), SampleReady(last, 0, "x", "y"))
    desk.drain()
    assert desk.session.state.step is not None
    assert desk.session.state.step.step == last
    assert len(desk.session.state.curve("loss")) == 1
    assert len(desk.session.state.samples) == 1


def test_only_neighbours_of_one_kind_are_coalesced() -> None:
    ready, progress = SampleReady(1, 0, "x", "y"), SampleProgress(1, 2)
    events: list[Event] = [step(1), step(2), ready, ready, step(3), progress, SampleProgress(2, 2), step(4)]
    assert list(newest_of_each(events)) == [step(2), ready, ready, step(3), SampleProgress(2, 2), step(4)]


def test_a_drain_stops_when_its_time_is_up(desk: Desk) -> None:
    desk.session.begin(RunRequest(Config()))
    assert desk.engine.run is not None
    desk.engine.run.emit(step(1))
    assert not desk.session.drain(time.perf_counter() - 1)
    assert desk.session.drain(soon())


def test_the_engine_may_report_that_it_stops(desk: Desk) -> None:
    desk.session.begin(RunRequest(Config()))
    assert desk.engine.run is not None
    desk.engine.run.emit(PhaseChanged("stopping"))
    desk.drain()
    assert desk.session.stage == "stopping"
    desk.engine.run.end(RunFailed("It broke."))
    desk.drain()
    assert desk.session.stage == "idle"
