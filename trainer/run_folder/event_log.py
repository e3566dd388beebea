"""Where events go: to whoever listens, and as lines into the run's events.jsonl."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from modules.system.redaction import RedactingFormatter
from trainer.events import (
    CacheProgress,
    DownloadProgress,
    Event,
    Phase,
    PhaseChanged,
    RunFailed,
    RunFinished,
    SampleProgress,
    WarningRaised,
    from_line,
    to_line,
    without_secrets,
)
from trainer.run_folder.run_lock import RunLock

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
    """Passes events on and keeps them in a file, once there is one. The run's folder is locked while it is open."""

    def __init__(self, listener: Callable[[Event], None], now: Callable[[], datetime]) -> None:
        self._listener = listener
        self._now = now
        self._lock: RunLock | None = None
        self._file: BinaryIO | None = None
        self._waiting = b""
        self._is_failing = False
        self._handler: logging.Handler | None = None
        self._phase: Phase | None = None
        self.run_dir: Path | None = None

    def emit(self, event: Event) -> None:
        """Tell an event, without any secret in its texts. A phase that already is is not told again.

        A file that cannot be written, as on a full disk, is no reason to raise: the listener always gets the event.
        """
        event = without_secrets(event)
        if isinstance(event, PhaseChanged):
            if event.phase == self._phase and not event.detail:
                return
            self._phase = event.phase
        self._listener(event)
        if not isinstance(event, _NOT_KEPT):
            self._write(event)

    def open(self, run_dir: Path) -> None:
        """Lock a run's folder and begin to keep events there, those so far included, and the log of the program.

        Raises DarkroomError where another run has the folder, and OSError; `run_dir` is set once the folder is ours.
        """
        self._lock = RunLock(run_dir)
        self.run_dir = run_dir
        self._file = (run_dir / EVENTS_FILE).open("ab+", buffering=0)
        if _ends_in_mid_line(self._file):  # the process before was killed, or the disk was full
            self._waiting = b"\n" + self._waiting
        self._write_waiting()
        self._handler = logging.FileHandler(run_dir / "log.txt", encoding="utf-8")
        self._handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.getLogger().addHandler(self._handler)

    def close(self) -> None:
        """Close the files and unlock the folder. Never raises for a full disk."""
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)
            with suppress(OSError):
                self._handler.close()
            self._handler = None
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _write(self, event: Event) -> None:
        """Add an event's line to those that wait, and write them. The first time that fails, a warning says so."""
        self._waiting += to_line(event, time=self._now().isoformat(timespec="milliseconds")).encode() + b"\n"
        was_failing = self._is_failing
        self._write_waiting()
        if self._is_failing and not was_failing and not isinstance(event, RunFinished | RunFailed):
            self.emit(
                WarningRaised(
                    f"{EVENTS_FILE} in the run's folder cannot be written at the moment.",
                    "The run continues, but backups need room too: check the disk.",
                )
            )

    def _write_waiting(self) -> None:
        """Write what waits; what cannot be written, as on a full disk, waits for the next time."""
        try:
            while self._waiting and self._file is not None:
                self._waiting = self._waiting[self._file.write(self._waiting) :]
            self._is_failing = False
        except OSError:
            self._is_failing = True


def _ends_in_mid_line(file: BinaryIO) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
