"""How automatic captions or masks stand, folded from the events of their process. No Tk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trainer.annotation.events import AnnotationEvent, Failed, Finished, ImageDone, Loading

_MAX_LINES = 200


@dataclass(frozen=True, slots=True)
class AnnotationState:
    """What is shown: a line, the share that is done, the newest lines of the log, and how it ended, if it has."""

    what: str
    text: str = "Starting…"
    share: float = 0.0
    lines: tuple[str, ...] = ()
    finished: Finished | None = None
    failed: Failed | None = None

    @property
    def is_over(self) -> bool:
        """Whether no more events come."""
        return self.finished is not None or self.failed is not None


def after(state: AnnotationState, event: AnnotationEvent) -> AnnotationState:
    """Return the state after an event."""
    match event:
        case Loading(label=label, done_mb=done, total_mb=total):
            if not total:
                return replace(state, text=f"Loading {label}…")
            text = f"Downloading {label}: {done:,.0f} of {total:,.0f} MB"
            return replace(state, text=text, share=min(1.0, done / total))
        case ImageDone(done=done, total=total):
            left = f", {duration(event.seconds_left)} left" if event.seconds_left else ""
            line = _line(event)
            lines = (*state.lines, line)[-_MAX_LINES:] if line else state.lines
            return replace(state, text=f"Image {done:,} of {total:,}{left}", share=done / total, lines=lines)
        case Finished():
            return replace(state, text=event.words(state.what), share=1.0, finished=event)
        case Failed(message=message, advice=advice):
            return replace(state, text=f"{message} {advice}".strip(), failed=event)


def duration(seconds: float) -> str:
    """Return a time to wait, roughly."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _line(event: ImageDone) -> str:
    name = Path(event.path).name
    if event.problem:
        return f"▲ {name}: {event.problem}"
    if not event.has_written:
        return ""
    return f"{name}: {event.text}" if event.text else name
