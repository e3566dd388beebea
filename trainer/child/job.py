"""A job beside training (a tool, samples without a run, captions, masks) in a child process, for the window."""

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
class Ended:
    """The child has ended: its exit code, and the last lines of its standard error."""

    code: int
    errors: str


ChildJob = ChildProcess[JobEvent | Ended]


def start_job(arguments: Sequence[str], *, spawn: Spawn = spawn_trainer) -> ChildJob:
    """Start a job in a child process and return at once; its last event is always `Ended`. Raises OSError."""
    return ChildJob(arguments, read=job_event, ending=_ended, spawn=spawn)


def _ended(_last: JobEvent | Ended | None, code: int, log: Path) -> Ended:
    errors = last_lines(log, _NUM_LINES)
    remove_quietly(log)
    return Ended(code, errors)
