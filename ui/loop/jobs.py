"""The state of a job that the window shows: how far it is, and how it ended."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from modules.settings.field import Section
from modules.system.file_errors import plain_reason
from trainer.child.job import ChildJob, JobEnded, send_job
from trainer.child.process import Spawn, spawn_trainer
from trainer.job_events import (
    ImageAnnotated,
    JobEvent,
    JobFailed,
    JobFinished,
    JobLines,
    JobNotes,
    JobProgress,
    JobStopped,
)
from ui.loop.interaction import Failure
from ui.loop.signal import Signal

if TYPE_CHECKING:
    from trainer.jobs.spec import JobSpec

_MAX_LINES = 200
logger = logging.getLogger(__name__)
Stage = Literal["idle", "running", "stopping", "finished", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as it is shown: what it does and how far it is, and its result."""

    stage: Stage = "idle"
    title: str = ""
    what: str = "starting"
    share: float = 0.0
    detail: str = ""
    message: str = ""
    notes: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    failure: Failure | None = None
    lines: tuple[str, ...] = ()  # the newest ones of its log

    @property
    def is_active(self) -> bool:
        """Whether the job runs."""
        return self.stage in ("running", "stopping")

    @property
    def status(self) -> str:
        """The state in a line; with the advice, if the job has failed."""
        match self.stage:
            case "idle":
                return ""
            case "running":
                return ": ".join(filter(None, (self.what[:1].upper() + self.what[1:], self.detail)))
            case "stopping":
                return "Stopping..."
            case _:
                advice = self.failure.advice if self.failure is not None else ""
                return f"{self.message} {advice}".strip()


def apply_event(state: JobState, event: JobEvent | JobEnded) -> JobState:
    """Return the state after an event."""
    match event:
        case JobProgress(what=what, done=done, total=total, seconds_left=left) if state.is_active:
            share = event.share if event.share is not None else done / total if total else 0.0
            return replace(state, what=what, share=share, detail=_progress_text(done, total, left))
        case JobNotes(notes=notes):
            return replace(state, notes=(*state.notes, *notes))
        case JobLines(lines=lines):
            return replace(state, lines=(*state.lines, *lines)[-_MAX_LINES:])
        case ImageAnnotated():
            return replace(state, lines=(*state.lines, *_annotation_lines(event))[-_MAX_LINES:])
        case JobFinished(message=message, paths=paths, notes=notes):
            results = tuple(map(Path, paths))
            all_notes = (*state.notes, *notes)
            return replace(state, stage="finished", share=1.0, message=message, notes=all_notes, paths=results)
        case JobStopped(message=message):
            return replace(state, stage="stopped", message=message)
        case JobFailed(message=message, advice=advice, details=details, remedy=remedy):
            failure = Failure(state.title or "Failed", message, advice, details, remedy=remedy)
            return replace(state, stage="failed", message=message, failure=failure)
        case JobEnded(errors=errors) if state.is_active:
            if state.stage == "stopping":
                return replace(state, stage="stopped", message="Stopped.")
            failure = Failure(state.title, "It ended unexpectedly.", "The window's log shows what it printed.", errors)
            return replace(state, stage="failed", message=failure.message, failure=failure)
        case _:
            return state


def log_failure(state: JobState) -> None:
    """Write the technical details of a job that has failed to the window's log."""
    if state.failure is not None and state.failure.details:
        logger.error("%s: %s\n%s", state.failure.title, state.failure.message, state.failure.details)


def _progress_text(done: int, total: int, seconds_left: float | None) -> str:
    if total <= 1:
        return ""
    left = f", {timedelta(seconds=round(seconds_left))} left" if seconds_left else ""
    return f"{done:,} of {total:,}{left}"


def _annotation_lines(event: ImageAnnotated) -> list[str]:
    name = Path(event.path).name
    if event.problem:
        return [f"▲ {name}: {event.problem}"]
    if not event.has_written:
        return []
    return [f"{name}: {event.text}" if event.text else name]


class JobRunner:
    """Runs one job at a time, each in a process of its own; `changed` is emitted after each change."""

    def __init__(self, *, spawn: Spawn = spawn_trainer) -> None:
        self.state = JobState()
        self.changed: Signal[[]] = Signal()
        self._spawn = spawn
        self._process: ChildJob | None = None

    def start(self, spec: JobSpec, settings: Section, *, title: str = "") -> None:
        """Start a job; nothing while one runs. `title` stands for its label."""
        from trainer.jobs.spec import request_line

        if self.state.is_active:
            return
        self.state = JobState("running", title or spec.label)
        try:
            self._process = send_job(request_line(spec, settings), spawn=self._spawn)
        except OSError as error:
            self.state = apply_event(self.state, JobFailed(f"The process could not be started: {plain_reason(error)}."))
        self.changed()

    def stop(self) -> None:
        """Ask the job to stop."""
        if self._process is not None and self.state.stage == "running":
            self._process.stop()
            self.state = replace(self.state, stage="stopping")
            self.changed()

    def drain(self, _deadline: float) -> bool:
        """Apply the events that have arrived, for the pump."""
        if self._process is None:
            return False
        before = self.state
        for event in self._process.waiting():
            self.state = apply_event(self.state, event)
            if isinstance(event, JobEnded):
                self._process = None
        if self.state is not before:
            if self.state.failure is not before.failure:
                log_failure(self.state)
            self.changed()
        return self.state is not before

    def close(self) -> None:
        """Let the job end with the window."""
        if self._process is not None:
            self._process.close()


def has_job(source: object) -> bool:
    """Return whether a source of the pump belongs to a job that runs."""
    state = getattr(getattr(source, "__self__", None), "state", None)
    return isinstance(state, JobState) and state.is_active
