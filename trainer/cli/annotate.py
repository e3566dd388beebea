"""What the verbs caption and mask share: their progress, on a terminal or as events, and how they stop."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from modules.system.errors import DarkroomError
from trainer.annotation.child import stop_signal
from trainer.annotation.events import AnnotationEvent, Failed, Finished, ImageDone, Loading, to_line
from trainer.cli.console import Meter

_FAILED, _WRONG, _STOPPED = 1, 2, 130
Emit = Callable[[AnnotationEvent], None]
RunWork = Callable[[Emit, Callable[[], bool]], Finished]


def annotate(run: RunWork, *, what: str, as_events: bool) -> int:
    """Run `run(emit, should_stop)` and return the exit code. `what` is "captions" or "masks"."""
    return _with_events(run) if as_events else _on_a_terminal(run, what)


def _with_events(run: RunWork) -> int:
    def emit(event: AnnotationEvent) -> None:
        sys.stdout.write(f"{to_line(event)}\n")
        sys.stdout.flush()

    try:
        return _code(run(emit, stop_signal(sys.stdin)))
    except DarkroomError as error:
        emit(Failed(error.message, error.advice))
        return _WRONG
    except Exception as error:
        emit(Failed(f"{type(error).__name__}: {error}"))
        raise


def _on_a_terminal(run: RunWork, what: str) -> int:
    meter, asked = Meter(), threading.Event()

    def emit(event: AnnotationEvent) -> None:
        match event:
            case Loading(total_mb=total) if total:
                meter.progress("downloading the model (MB)", round(event.done_mb), round(total), "")
            case ImageDone(problem=problem) if problem:
                meter.line(f"{event.path}: {problem}")
            case ImageDone():
                left = event.seconds_left
                meter.progress(what, event.done, event.total, f"about {left:.0f} s left" if left else "")
            case Finished():
                meter.line(event.words(what))

    try:
        return _code(run(emit, asked.is_set))
    except KeyboardInterrupt:
        meter.line(f"Stopped. The {what} that were written stay.")
        return _STOPPED
    finally:
        meter.close()


def _code(finished: Finished) -> int:
    if finished.outcome == "stopped":
        return _STOPPED
    return _FAILED if finished.num_failed else 0
