"""Events of a job that is not training (a tool, samples without a run, captions and masks): frozen records.

A job is a child process of the window, or a verb on the command line.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a job: `done` of `total` units of the work `what`. `seconds_left` is None at first.

    `share` is how much of the whole job is done, where that is not `done` of `total`.
    """

    what: str
    done: int
    total: int
    seconds_left: float | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class JobNotes:
    """Notes of a job before it writes: a sentence for each thing that its result will lack. It can still be stopped."""

    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobLines:
    """New lines of a job's log."""

    lines: tuple[str, ...]


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
class ImageAnnotated:
    """An image got a caption or a mask: `text` is its new caption. `problem` is why nothing could be written.

    `has_written` is False where the file stays as it is.
    """

    path: str
    has_written: bool
    text: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class JobFinished:
    """A job is done: its summary, the files and folders that it wrote, and notes about them.

    `text` is a result to print, such as a table. `code` is the exit code of the verb.
    """

    message: str
    paths: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    request: int = 0
    text: str = ""
    code: int = 0


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job failed: what is wrong, what to do, technical details, and the name of what fixes it, if something does."""

    message: str
    advice: str = ""
    details: str = ""
    request: int = 0
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class JobStopped:
    """A job was stopped by the user."""

    message: str = "Stopped."
    request: int = 0


JobEvent = JobProgress | JobNotes | JobLines | ImageSampled | ImageAnnotated | JobFinished | JobFailed | JobStopped
