"""The run of a window: owns the handle of the training thread and the state folded from its events.

idle -> checking -> idle            the check found errors
idle -> running -> stopping -> idle
        running <-> paused

The events, the commands, the state and what folds them are imported with the first run: the window starts without
them.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from modules.config.schema import Config
from modules.system.errors import DarkroomError
from ui.loop.background import Background, Job, cancel
from ui.loop.signal import Signal

if TYPE_CHECKING:
    from trainer.commands import Command
    from trainer.events import Event, RunStarted
    from trainer.launch import LaunchedRun, RunRequest
    from trainer.preflight import Progress, Report
    from trainer.run_folder.attached import AttachedRun
    from trainer.run_folder.backup import BackupInfo
    from ui.loop.run_state import RunState

MAX_BACKLOG = 200
_LONG_CHECK_SECONDS = 1.0  # then a check can be stopped, and not by the second click of a double click on Start

Stage = Literal["idle", "checking", "running", "paused", "stopping"]
Launch = Callable[["RunRequest"], "LaunchedRun"]
T = TypeVar("T")


class Check(Protocol):
    """The check of a config: `trainer.preflight.check`."""

    def __call__(
        self, config: Config, *, progress: Progress, resume_from: Path | None = None, is_fork: bool = False
    ) -> Report:
        """Return the findings; `resume_from` is the backup to resume from, or with `is_fork` to continue from."""
        ...


def check_config(
    config: Config, *, progress: Progress, resume_from: Path | None = None, is_fork: bool = False
) -> Report:
    """Check a config. The rules are imported at the first check, when the window is drawn."""
    from trainer.preflight import check

    return check(config, progress=progress, resume_from=resume_from, is_fork=is_fork)


def launch_as_set(request: RunRequest) -> LaunchedRun:
    """Start a run in a thread, or in a process of its own if it is set to, needs it, or follows another machine.

    Raises OSError.
    """
    if request.config.general.separate_process or request.on:
        from trainer.run_folder import attached

        return attached.launch_detached(request)
    from trainer.child import run

    return run.launch_as_set(request)


class RunSession:
    """Starts, controls and follows one run at a time."""

    def __init__(
        self,
        background: Background,
        *,
        launch_run: Launch = launch_as_set,
        check_config: Check = check_config,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._background = background
        self._launch = launch_run
        self._check = check_config
        self._wall_clock = wall_clock
        self.request: RunRequest | None = None  # of the current run, or of the last one
        self.is_reserved = False  # the queue begins the next run
        self._handle: LaunchedRun | None = None
        self.attached: AttachedRun | None = None
        """The current run, if its process continues without this one."""
        self._stage: Stage = "idle"
        self.shown: RunState | None = None
        """The state of the current run, or of the last one; None before the first."""
        self._history_job: Job | None = None
        self._check_job: Job | None = None
        self._checked_since = 0.0
        self.work_of_check = ""
        """The work of a long check, which can be stopped then; "" at any other time."""
        self.config: Config | None = None
        """The settings of the current run, or of the last one; None before the first."""
        self._is_of_form = False
        self.changed: Signal[[]] = Signal()  # stage or state, at most once for each drain

    @property
    def stage(self) -> Stage:
        """The current stage."""
        return self._stage

    @property
    def state(self) -> RunState:
        """The state of the current run, or of the last one; an empty one before the first."""
        return self.shown if self.shown is not None else _empty_state()

    @property
    def started(self) -> RunStarted | None:
        """The start of the current run, or of the last one."""
        return self.shown.started if self.shown is not None else None

    @property
    def can_stop(self) -> bool:
        """Whether there is a run to stop, or a check that takes long."""
        return self._stage in ("running", "paused") or bool(self.work_of_check)

    @property
    def form_config(self) -> Config | None:
        """The settings of the active run, if it began with those of the form; else None."""
        return self.config if self.is_active and self._is_of_form else None

    @property
    def is_active(self) -> bool:
        """Whether a run is active."""
        return self._handle is not None

    def check(
        self, request: RunRequest, done: Callable[[Report], None], failed: Callable[[Exception], None] | None = None
    ) -> None:
        """Check a request in the background; `done(report)` is called on the Tk thread once the session is idle."""
        # A fork of weights is a new run: its settings may differ from the backup's.
        resume_from = None if request.kind == "fork_weights" else request.resume_from
        is_fork = request.kind == "fork"
        self._checked_since = self._wall_clock()
        self._check_job = self._prepare(
            lambda report: self._check(request.config, progress=report, resume_from=resume_from, is_fork=is_fork),
            done,
            failed,
        )

    def prepare(
        self, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None] | None = None
    ) -> None:
        """Do the work before a run in the background, while no other run can start; then call `done(result)`."""
        self._prepare(lambda _report: work(), done, failed)

    def _prepare(
        self, work: Callable[[Progress], T], done: Callable[[T], None], failed: Callable[[Exception], None] | None
    ) -> Job:
        assert self._stage == "idle", self._stage
        self._enter("checking")

        def succeed(result: T) -> None:
            self._end_check()
            done(result)

        def fail(error: Exception) -> None:
            self._end_check()
            if failed is None:
                raise error
            failed(error)

        return self._background.run_reporting(work, succeed, fail, progress=self._show_check)

    def _show_check(self, what: str, done: int, total: int) -> None:
        if self._check_job is not None and self._wall_clock() - self._checked_since >= _LONG_CHECK_SECONDS:
            self.work_of_check = what if total <= 1 else f"{what} {done:,} of {total:,}"
            self.changed()

    def _end_check(self) -> None:
        self._check_job, self.work_of_check = None, ""
        self._enter("idle")

    def check_now(self, config: Config, progress: Progress) -> Report:
        """Check a config synchronously, at any stage; for a background thread."""
        return self._check(config, progress=progress)

    def begin(self, request: RunRequest, *, launch_run: Launch | None = None, is_of_form: bool = True) -> None:
        """Start a run, by another launch than usual if one is given; the state of the last one is dropped.

        `is_of_form`: with the settings of the form.
        """
        assert self._stage == "idle", self._stage
        from trainer.run_folder.attached import AttachedRun
        from ui.loop.run_state import RunState

        self._handle = handle = (launch_run or self._launch)(request)
        self.attached = handle if isinstance(handle, AttachedRun) else None
        self.request = request
        self.shown = RunState(phase="starting")
        self.config, self._is_of_form = request.config, is_of_form and request.kind != "report"
        cancel(self._history_job)
        if request.resume_from is not None and request.kind != "fork_weights":
            work = partial(_read_history, request.resume_from)
            self._history_job = self._background.run(work, self._prepend_history)
        self._enter("running")

    def attach(self, run: AttachedRun, state: RunState, config: Config | None, *, is_of_form: bool = False) -> None:
        """Follow a run that another process has begun, from the state that it has reached.

        `is_of_form`: it began with the settings of the form.
        """
        assert self._stage == "idle", self._stage
        cancel(self._history_job)
        self._handle = self.attached = run
        self.request, self.config, self._is_of_form = None, config, is_of_form
        self.shown = state
        self._enter("paused" if state.phase == "paused" else "running")

    def leave(self) -> None:
        """Leave the run as the window ends: one of this process stops with its backup, which this waits for."""
        if self._handle is not None:
            self._handle.leave()

    def show_past(self, state: RunState, config: Config | None = None) -> None:
        """Show the state of an earlier run and its config, while none is active."""
        assert self._handle is None
        cancel(self._history_job)
        self.config = config
        self.shown = state
        self.changed()

    def stop(self) -> None:
        """Ask the run to stop; the stage is "stopping" until it has. A check that takes long ends at once."""
        if self._check_job is not None and self.work_of_check:
            self._check_job.cancel()
            self._end_check()
            return
        from trainer.commands import Stop

        if self._send(Stop()):
            self._enter("stopping")

    def pause(self, *, free_memory: bool = False) -> None:
        """Pause the run; a paused one keeps or frees the card's memory from now on."""
        from trainer.commands import Pause

        if self._stage in ("running", "paused") and self._send(Pause(free_memory)):
            self._enter("paused")

    def unpause(self) -> None:
        """Continue a paused run."""
        from trainer.commands import Resume

        if self._stage == "paused" and self._send(Resume()):
            self._enter("running")

    def send(self, command: Command) -> None:
        """Send a command (sample, validate, back up, save) to the run."""
        self._send(command)

    def drain(self, deadline: float) -> bool:
        """Fold waiting events until a deadline of `time.perf_counter`; return whether there were any.

        Of consecutive progress events only the newest is folded.
        """
        handle = self._handle
        if handle is None:
            return False
        was_alive = handle.is_alive  # read before the queue is drained: no event can follow the last one
        num_events = 0
        waiting = _take_events(handle, deadline)
        # Every step is a point of the curve, so events are skipped only if the window is far behind.
        for event in newest_of_each(waiting) if handle.events.qsize() > MAX_BACKLOG else waiting:
            self._fold(event)
            num_events += 1
        if not was_alive and handle.events.empty():
            self._end()
        elif num_events:
            self.changed()
        return num_events > 0

    def _prepend_history(self, before: RunState) -> None:
        """Show the history of a resumed run."""
        from ui.loop.folding import prepend_history

        self.shown = prepend_history(before, self.state)
        self.changed()

    def _find_newest_backup(self) -> BackupInfo | None:
        """Return the newest backup of the current run; of one that never began, the one it was to resume from."""
        from trainer.run_folder.backup import find_backup, list_backups

        if self.started is not None:
            return next(reversed(list_backups(Path(self.started.run_dir))), None)
        if self.request is None or self.request.kind != "resume" or self.request.resume_from is None:
            return None
        try:
            return find_backup(self.request.resume_from)
        except DarkroomError:
            return None

    def _fold(self, event: Event) -> None:
        from trainer.events import PhaseChanged, RunFailed
        from ui.loop.folding import fold

        if isinstance(event, RunFailed) and not event.backup_path:  # the report of a killed run names no backup
            backup = self._find_newest_backup()
            event = event if backup is None else replace(event, backup_path=str(backup.path))
        was_paused = self.state.phase == "paused"
        self.shown = fold(self.state, event, self._wall_clock())
        match event:
            case PhaseChanged(phase="paused") if self._stage == "running":
                self._stage = "paused"
            case PhaseChanged(phase="stopping"):
                self._stage = "stopping"
            case PhaseChanged(phase=phase) if was_paused and phase != "paused" and self._stage == "paused":
                self._stage = "running"  # continued before the report of the pause arrived, or from elsewhere
            case _:
                pass

    def _end(self) -> None:
        """Drop everything of the run except its state."""
        if not self.state.is_over:
            from trainer.events import RunFailed
            from trainer.run_status import CRASH_MESSAGE

            self._fold(RunFailed(CRASH_MESSAGE, _advise(self._find_newest_backup()), is_crash=True))
        self._handle = self.attached = None
        self._enter("idle")

    def _send(self, command: Command) -> bool:
        if self._handle is None:
            return False
        self._handle.send(command)
        return True

    def _enter(self, stage: Stage) -> None:
        self._stage = stage
        self.changed()


@cache
def _empty_state() -> RunState:
    from ui.loop.run_state import RunState

    return RunState()


def newest_of_each(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events; of consecutive progress events of one kind, only the last."""
    from trainer.events import ProgressEvent

    pending: Event | None = None
    for event in events:
        if pending is not None and type(pending) is not type(event):
            yield pending
        pending = event if isinstance(event, ProgressEvent) else None
        if pending is None:
            yield event
    if pending is not None:
        yield pending


def _take_events(handle: LaunchedRun, deadline: float) -> Iterator[Event]:
    while time.perf_counter() < deadline:
        try:
            yield handle.events.get_nowait()
        except queue.Empty:
            return


def _advise(backup: BackupInfo | None) -> str:
    """Return the advice for a run that ended without a reason, with the way on that there is."""
    why = "The window's log may show why."
    if backup is None:
        return f"{why} It has no backup: start it again."
    return f"{why} It can be resumed from its backup of step {backup.step:,}."


def _read_history(resume_from: Path) -> RunState:
    """Return the history of a run up to the backup that it resumes from."""
    from trainer.run_folder.backup import find_backup
    from trainer.run_folder.event_log import read_events
    from ui.loop.folding import history_before

    try:
        backup = find_backup(resume_from)
    except DarkroomError:  # the run itself reports it
        return RunState()
    return history_before(read_events(backup.run_dir), until_step=backup.step)
