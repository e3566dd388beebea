"""The events of automatic captions and masks, and their form as lines of JSON over a pipe. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from modules.system.problem import count
from modules.system.redaction import redacted

Outcome = Literal["finished", "stopped"]


@dataclass(frozen=True, slots=True)
class Loading:
    """The model is being loaded, or its files are being downloaded: `done_mb` of `total_mb`."""

    label: str
    done_mb: float = 0.0
    total_mb: float = 0.0


@dataclass(frozen=True, slots=True)
class ImageDone:
    """An image is done. `text` is its new caption, `problem` why nothing could be written.

    `has_written` is False where the file stays as it is.
    """

    done: int
    total: int
    path: str
    has_written: bool
    text: str = ""
    problem: str = ""
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The work is over. `kept_in` is the folder with copies of the replaced files, if there are any."""

    outcome: Outcome
    num_written: int
    num_left: int
    num_failed: int
    kept_in: str = ""

    def words(self, what: str) -> str:
        """Return how it ended, as sentences; `what` is "captions" or "masks"."""
        parts = [f"{count(self.num_written, what.removesuffix('s'))} written"]
        if self.num_left:
            parts.append(f"{count(self.num_left, 'image')} left as they are")
        if self.num_failed:
            parts.append(f"{count(self.num_failed, 'image')} could not be done")
        stopped = "Stopped. " if self.outcome == "stopped" else ""
        kept = f" The files before are kept in {self.kept_in}." if self.kept_in else ""
        return f"{stopped}{', '.join(parts)}.{kept}"


@dataclass(frozen=True, slots=True)
class Failed:
    """The work could not be done."""

    message: str
    advice: str = ""


AnnotationEvent = Loading | ImageDone | Finished | Failed
_KINDS: Mapping[str, type[AnnotationEvent]] = {k.__name__: k for k in (Loading, ImageDone, Finished, Failed)}


def to_line(event: AnnotationEvent) -> str:
    """Return an event as a line of JSON, without secrets that an error may quote."""
    data: dict[str, Any] = {"event": type(event).__name__, **asdict(event)}
    if isinstance(event, Failed):
        data |= {"message": redacted(event.message), "advice": redacted(event.advice)}
    return json.dumps(data)


def from_line(line: str) -> AnnotationEvent | None:
    """Return the event of a line; None for any other line."""
    try:
        data = json.loads(line)
        kind = _KINDS[data.pop("event")]
        return kind(**{f.name: data[f.name] for f in fields(kind) if f.name in data})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
