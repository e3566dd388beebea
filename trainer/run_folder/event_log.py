"""Where events go: to whoever listens, and as lines into the run's events.jsonl."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TextIO

from modules.system.redaction import RedactingFormatter
from trainer.events import (
    CacheProgress,
    DownloadProgress,
    Event,
    Phase,
    PhaseChanged,
    SampleProgress,
    from_line,
    to_line,
    without_secrets,
)

EVENTS_FILE = "events.jsonl"
_NOT_KEPT = (DownloadProgress, CacheProgress, SampleProgress)  # too many, and of no use afterwards


def read_events(run_dir: Path) -> Iterator[Event]:
    """Yield what a run has told so far, all its attempts one after the other; nothing where it left no file.

    Lines of another kind, a newer program's or half written ones, are passed over.
    """
    try:
        with (run_dir / EVENTS_FILE).open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if (event := from_line(line)) is not None:
                    yield event
    except OSError:
        return


class EventLog:
    """Passes events on and keeps them in a file, once there is one."""

    def __init__(self, listener: Callable[[Event], None], now: Callable[[], datetime]) -> None:
        self._listener = listener
        self._now = now
        self._file: TextIO | None = None
        self._waiting: list[str] = []
        self._handler: logging.Handler | None = None
        self._phase: Phase | None = None
        self.run_dir: Path | None = None

    def emit(self, event: Event) -> None:
        """Tell an event, without any secret in its texts. A phase that already is is not told again."""
        event = without_secrets(event)
        if isinstance(event, PhaseChanged):
            if event.phase == self._phase and not event.detail:
                return
            self._phase = event.phase
        self._listener(event)
        if not isinstance(event, _NOT_KEPT):
            self._write(to_line(event, time=self._now().isoformat(timespec="milliseconds")))

    def open(self, run_dir: Path) -> None:
        """Begin to keep events, those so far included, and the log of the program, in a run's folder."""
        self.run_dir = run_dir
        self._file = (run_dir / EVENTS_FILE).open("a", encoding="utf-8")
        waiting, self._waiting = self._waiting, []
        for line in waiting:
            self._write(line)
        self._handler = logging.FileHandler(run_dir / "log.txt", encoding="utf-8")
        self._handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.getLogger().addHandler(self._handler)

    def close(self) -> None:
        """Close the files."""
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)
            self._handler.close()
            self._handler = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: str) -> None:
        if self._file is None:
            self._waiting.append(line)
            return
        self._file.write(line + "\n")
        self._file.flush()
