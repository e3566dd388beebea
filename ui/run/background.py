"""Short jobs of the window on threads of their own: folder scans, thumbnails, checks. No Tk.

A job computes and touches no widget; its result waits until the pump hands it over on the Tk thread.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_log = logging.getLogger(__name__)
_NUM_THREADS = 2


class Job:
    """A job that was asked for; `cancel` keeps its result from being handed over."""

    def __init__(self, work: Callable[[], Any], done: Callable[[Any], None], failed: Callable[[Exception], None]):
        self.work = work
        self.done = done
        self.failed = failed
        self.is_cancelled = False

    def cancel(self) -> None:
        """Let the job be forgotten: it is not begun, or its result is dropped."""
        self.is_cancelled = True


class Background:
    """Two threads that work through jobs in order, and the results that wait for the Tk thread."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def run(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None] | None = None,
    ) -> Job:
        """Run `work` on a thread; then `done(result)`, or `failed(error)`, on the thread that drains."""
        job = Job(work, done, failed or _log_failure)
        self._jobs.put(job)
        if len(self._threads) < _NUM_THREADS:
            thread = threading.Thread(target=self._work, name="darkroom-background", daemon=True)
            self._threads.append(thread)
            thread.start()
        return job

    def drain(self, deadline: float) -> bool:
        """Hand over finished results until the deadline of `time.perf_counter`; return whether there were any."""
        has_drained = False
        while time.perf_counter() < deadline:
            try:
                hand_over = self._results.get_nowait()
            except queue.Empty:
                break
            has_drained = True
            hand_over()
        return has_drained

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if not job.is_cancelled:
                self._results.put(_finished(job))
            del job  # nothing of the last job stays alive while waiting for the next


def _finished(job: Job) -> Callable[[], None]:
    """Do the work and return what the Tk thread is to call."""
    try:
        result = job.work()
    except Exception as error:  # noqa: BLE001 - the outer edge of a thread; handed over, and logged by default
        failure = error
        return lambda: None if job.is_cancelled else job.failed(failure)
    return lambda: None if job.is_cancelled else job.done(result)


def _log_failure(error: Exception) -> None:
    _log.error("A background job failed", exc_info=error)
