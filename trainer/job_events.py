"""What a job beside training reports (a tool, samples without a run): frozen records, and their form as JSON lines.

A job is a child process of the window, or a verb on the command line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import get_args

from pydantic import TypeAdapter, ValidationError


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job is: of `total` units of what it is doing `done` are done. `seconds_left` is None at first."""

    what: str
    done: int
    total: int
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class ImageSampled:
    """An image was sampled and written; `request` counts the requests of a worker, `index` the images of a request."""

    path: str
    index: int
    total: int
    prompt: str
    seed: int
    caption: str = ""
    is_grid: bool = False
    request: int = 0


@dataclass(frozen=True, slots=True)
class JobFinished:
    """A job is done: what it did, the files and folders it wrote, and notes about them."""

    message: str
    paths: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    request: int = 0


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job failed: what is wrong, what to do, and technical details."""

    message: str
    advice: str = ""
    details: str = ""
    request: int = 0


@dataclass(frozen=True, slots=True)
class JobStopped:
    """A job was stopped by the user."""

    message: str = "Stopped."
    request: int = 0


JobEvent = JobProgress | ImageSampled | JobFinished | JobFailed | JobStopped
JOB_EVENTS: Mapping[str, type[JobEvent]] = {kind.__name__: kind for kind in get_args(JobEvent)}


def job_line(event: JobEvent) -> str:
    """Return an event as one line of JSON, its kind under "event"."""
    return json.dumps({"event": type(event).__name__, **asdict(event)})


def job_event(line: str) -> JobEvent | None:
    """Return the event of a line, or None for any other line."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    name = data.pop("event", None) if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in JOB_EVENTS:
        return None
    try:
        return _reader(name).validate_python(data)
    except ValidationError:
        return None


@cache
def _reader(name: str) -> TypeAdapter[JobEvent]:
    return TypeAdapter(JOB_EVENTS[name])
