"""Reporting the progress of a download, and stopping it on request."""

from __future__ import annotations

from collections.abc import Callable

from trainer.commands import CommandDesk
from trainer.events import DownloadProgress, Event

_SECONDS_BETWEEN_EVENTS = 0.25


class DownloadMeter:
    """Called from the download threads with the bytes done and in total; raises StopRequested to end them."""

    def __init__(self, *, emit: Callable[[Event], None], desk: CommandDesk, clock: Callable[[], float]) -> None:
        self._emit = emit
        self._desk = desk
        self._clock = clock
        self._started: tuple[float, float] | None = None
        self._last_report = 0.0

    def __call__(self, done_bytes: float, total_bytes: float) -> None:
        """Report the progress, a few times a second."""
        self._desk.check()
        now = self._clock()
        if self._started is None:
            self._started = (now, done_bytes)
        if now - self._last_report < _SECONDS_BETWEEN_EVENTS and done_bytes < total_bytes:
            return
        self._last_report = now
        seconds, fetched = now - self._started[0], done_bytes - self._started[1]
        seconds_left = (total_bytes - done_bytes) * seconds / fetched if fetched > 0 else None
        self._emit(DownloadProgress(done_bytes / 1e6, total_bytes / 1e6, seconds_left))
