"""The event log: passes events to the listener and appends them as lines to the run's events.jsonl."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from threading import RLock
from typing import BinaryIO

from modules.system.atomic import flush_folder
from modules.system.redaction import LogFile
from trainer import events
from trainer.event_lines import from_line, to_line, without_secrets
from trainer.machine_events import MemoryMeasured
from trainer.run_folder.run_lock import RunLock
from trainer.timing import in_local_zone

logger = logging.getLogger("darkroom.run")

EVENTS_FILE = "events.jsonl"
NOT_KEPT = (events.DownloadProgress, events.CacheProgress, events.SampleProgress, MemoryMeasured)
"""The events that a log does not keep: they are too many, and not needed afterwards."""
_MAX_LAST_BYTES = 100_000  # of the end of the file


def read_events(run_dir: Path) -> Iterator[events.Event]:
    """Yield the events of a run so far, of all its attempts in order; nothing if there is no file.

    Lines that are not events (from a newer version, or half written) are skipped.
    """
    try:
        with (run_dir / EVENTS_FILE).open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if (event := from_line(line)) is not None:
                    yield event
    except OSError:
        return


def outlasts(step: int, resumed: events.RunStarted) -> bool:
    """Return whether the events of a step still count after a run was resumed: steps after its backup are lost."""
    return step <= resumed.first_step


def num_whole_bytes(run_dir: Path) -> int:
    """Return how many bytes of a run's log are whole lines; 0 without a log, or if the last line is a huge one."""
    try:
        with (run_dir / EVENTS_FILE).open("rb") as file:
            start = file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_LAST_BYTES))
            return start + end if (end := file.read().rfind(b"\n") + 1) else 0
    except OSError:
        return 0


def last_event(run_dir: Path) -> events.Event | None:
    """Return the last event of a run so far; None without events, or if its line is not complete."""
    try:
        with (run_dir / EVENTS_FILE).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_LAST_BYTES))
            content = file.read()
    except OSError:
        return None
    lines = content.splitlines()
    return from_line(lines[-1].decode(errors="replace")) if lines else None


def has_finished(run_dir: Path) -> bool:
    """Return whether the last attempt of a run ended by itself: there is nothing to resume, only more to train."""
    last = last_event(run_dir)
    return isinstance(last, events.RunFinished) and last.status.is_complete


def stamp(now: datetime) -> str:
    """Return a local time as the text of a log's line, with the offset of its time zone: a machine in another zone may
    read it.
    """
    return in_local_zone(now).isoformat(timespec="milliseconds")


class EventLog:
    """Passes events on and writes them to a file once it is open. The run's folder is locked while it is open."""

    def __init__(self, listener: Callable[[events.Event], None], now: Callable[[], datetime]) -> None:
        self._listener = listener
        self._now = now
        self._emitting = RLock()  # pauses of a download are reported by its threads
        self._lock: RunLock | None = None
        self._file: BinaryIO | None = None
        self._waiting = b""
        self._is_failing = False
        self._handler: logging.Handler | None = None
        self._phase: events.PhaseChanged | None = None
        self._work_phase: events.PhaseChanged | None = None  # the newest one that is not a pause
        self.run_dir: Path | None = None

    def emit(self, event: events.Event) -> None:
        """Report an event, with secrets removed from its texts. An unchanged phase is not reported again.

        A file that cannot be written, for example on a full disk, raises nothing: the listener always gets the event.
        """
        event = without_secrets(event)
        with self._emitting:
            if isinstance(event, events.PhaseChanged):
                if self._is_unchanged(event):
                    return
                self._phase = event
                if event.phase != "paused":
                    self._work_phase = event
            self._listener(event)
            if not isinstance(event, NOT_KEPT):
                self._write(event)

    def _is_unchanged(self, event: events.PhaseChanged) -> bool:
        if event.phase == "paused":  # one that keeps the memory may follow one that has freed it
            return event == self._phase
        return self._phase is not None and event.phase == self._phase.phase and not event.detail

    def report_pause(self, is_paused: bool) -> None:
        """Report a pause, or after it the newest phase before it again."""
        if is_paused:
            self.emit(events.PhaseChanged("paused"))
        elif self._work_phase is not None:
            self.emit(self._work_phase)

    def open(self, run_dir: Path) -> None:
        """Lock a run's folder and start writing there: all events, including earlier ones, and the program's log.

        Raises DarkroomError if another run uses the folder, and OSError. `run_dir` is set once the folder is locked.
        """
        self._lock = RunLock(run_dir)
        self.run_dir = run_dir
        self._file = (run_dir / EVENTS_FILE).open("ab+", buffering=0)
        if _ends_in_mid_line(self._file):  # the previous process was killed, or the disk was full
            self._waiting = b"\n" + self._waiting
        self._write_waiting()
        self._handler = LogFile(run_dir / "log.txt")
        logging.getLogger().addHandler(self._handler)

    def flush(self) -> None:
        """Flush the lines so far to the disk, so that a power failure leaves the history of each backup.

        A failure only means that the newest lines may be lost then: it raises nothing.
        """
        if self._file is None or self.run_dir is None:
            return
        try:
            os.fsync(self._file.fileno())
            flush_folder(self.run_dir)
        except OSError as error:
            logger.warning("%s could not be flushed to the disk: %s.", self.run_dir / EVENTS_FILE, error)

    def close(self) -> None:
        """Close the files and unlock the folder. Does not raise on a full disk."""
        self.flush()
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)
            self._handler.close()
            self._handler = None
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _write(self, event: events.Event) -> None:
        """Append an event's line to the pending ones and write them. The first failure emits a warning."""
        self._waiting += to_line(event, time=stamp(self._now())).encode() + b"\n"
        was_failing = self._is_failing
        self._write_waiting()
        if self._is_failing and not was_failing and not isinstance(event, events.RunFinished | events.RunFailed):
            self.emit(
                events.WarningRaised(
                    f"{self.run_dir or ''}{os.sep}{EVENTS_FILE} cannot be written.",
                    "The run continues, but backups need disk space too: check the disk.",
                )
            )

    def _write_waiting(self) -> None:
        """Write the pending lines; lines that cannot be written, for example on a full disk, stay pending."""
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
