"""Telling how far the download of a base model is, and letting a stop through."""

from __future__ import annotations

from collections.abc import Callable

from trainer.commands import CommandDesk
from trainer.events import DownloadProgress, Event

_SECONDS_BETWEEN_EVENTS = 0.25


class DownloadMeter:
    """Called with the bytes done and in all, from the threads that download; raises StopRequested to end them."""

    def __init__(self, *, emit: Callable[[Event], None], desk: CommandDesk, clock: Callable[[], float]) -> None:
        self._emit = emit
        self._desk = desk
        self._clock = clock
        self._started: tuple[float, float] | None = None
        self._told = 0.0

    def __call__(self, done_bytes: float, total_bytes: float) -> None:
        """Tell the progress, a few times a second."""
        self._desk.check()
        now = self._clock()
        if self._started is None:
            self._started = (now, done_bytes)
        if now - self._told < _SECONDS_BETWEEN_EVENTS and done_bytes < total_bytes:
            return
        self._told = now
        seconds, fetched = now - self._started[0], done_bytes - self._started[1]
        seconds_left = (total_bytes - done_bytes) * seconds / fetched if fetched > 0 else None
        self._emit(DownloadProgress(done_bytes / 1e6, total_bytes / 1e6, seconds_left))
