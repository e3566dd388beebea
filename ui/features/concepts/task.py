"""A long job of an editor: its progress, its result, or why it failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ui.loop.background import Background, Job, Report
from ui.loop.signal import Signal

T = TypeVar("T")


class Task(Generic[T]):
    """Runs one job at a time; starting another one cancels it."""

    def __init__(self, background: Background) -> None:
        self.changed: Signal[[]] = Signal()
        self.result: T | None = None
        self.failure: Exception | None = None
        self.words = ""  # what is being done
        self.share = 0.0
        self._background = background
        self._job: Job | None = None

    @property
    def is_running(self) -> bool:
        """Whether a job is under way."""
        return self._job is not None

    def start(self, work: Callable[[Report], T]) -> None:
        """Start a job; the last result stays until it is done."""
        self._cancel()
        self.failure, self.words, self.share = None, "", 0.0
        self._job = self._background.run_reporting(work, self._done, self._show_failure, progress=self._show_progress)
        self.changed()

    def stop(self) -> None:
        """Cancel the job."""
        self._cancel()
        self.changed()

    def _cancel(self) -> None:
        if self._job is not None:
            self._job.cancel()
            self._job = None

    def _show_progress(self, what: str, done: int, total: int) -> None:
        self.words = f"{what[:1].upper()}{what[1:]}: {done:,} of {total:,}" if total else what
        self.share = done / total if total else 0.0
        self.changed()

    def _done(self, result: T) -> None:
        self.result, self._job = result, None
        self.changed()

    def _show_failure(self, error: Exception) -> None:
        self.failure, self.result, self._job = error, None, None
        self.changed()
