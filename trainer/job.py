"""The progress of a job with the time left, and its stop on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from trainer.commands import CommandDesk
from trainer.job_events import JobEvent, JobNotes, JobProgress

_SECONDS_BETWEEN = 0.1
_MIN_SECONDS = 1.0  # of work, before the time left is estimated


class Job:
    """Reports progress, at most ten times a second; each report is where a stop takes effect."""

    def __init__(
        self,
        emit: Callable[[JobEvent], None],
        desk: CommandDesk | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.emit = emit
        self.desk = desk or CommandDesk()
        self._clock = clock
        self._what = ""
        self._begun = 0.0
        self._last = float("-inf")

    def note(self, notes: Iterable[str]) -> None:
        """Report notes about the result before it is written. Raises StopRequested once the job is to stop."""
        self.desk.check()
        if texts := tuple(notes):
            self.emit(JobNotes(texts))

    def progress(self, what: str, done: int, total: int, *, share: float | None = None) -> None:
        """Report that `done` of `total` units of some work are done, or a share of the whole job.

        Raises StopRequested once the job is to stop.
        """
        self.desk.check()
        now = self._clock()
        if what != self._what:
            self._what, self._begun, self._last = what, now, float("-inf")
        if now - self._last < _SECONDS_BETWEEN and done < total:
            return
        self._last = now
        spent = now - self._begun
        left = spent / done * (total - done) if done and spent >= _MIN_SECONDS else None
        self.emit(JobProgress(what, done, total, left, share))
