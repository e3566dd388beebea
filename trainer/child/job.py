"""A job that is not training (a tool, samples, captions, masks) in a child process, for the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.system.atomic import remove_quietly
from trainer.child.process import ChildProcess, Spawn, last_lines, spawn_trainer
from trainer.event_lines import job_event
from trainer.job_events import JobEvent

_NUM_LINES = 40


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The child has ended: its exit code, and the last lines of its standard error."""

    code: int
    errors: str


ChildJob = ChildProcess[JobEvent | JobEnded]


def start_job(arguments: Sequence[str], *, spawn: Spawn = spawn_trainer) -> ChildJob:
    """Start a job in a child process and return at once; its last event is always `JobEnded`. Raises OSError."""
    return ChildJob(arguments, read=job_event, ending=_ending_of, spawn=spawn)


def send_job(request: str, *, spawn: Spawn = spawn_trainer) -> ChildJob:
    """Start the job of a request (`trainer.jobs.spec.request_line`), as `start_job` does. Raises OSError."""
    child = start_job(("job",), spawn=spawn)
    child.send_line(request)
    return child


def _ending_of(_last: JobEvent | JobEnded | None, code: int, log: Path) -> JobEnded:
    errors = last_lines(log, _NUM_LINES)
    remove_quietly(log)
    return JobEnded(code, errors)
