"""Short background jobs of the window: folder scans, thumbnails, checks.

A job touches no widget; the pump delivers its result on the Tk thread.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet

from ui.loop.signal import notify

T = TypeVar("T")
Report = Callable[[str, int, int], None]
"""Called during a long job with what is being done, how much of it is done, and all of it. Raises to stop the job."""

_log = logging.getLogger(__name__)
_NUM_THREADS = 2
_REPORT_INTERVAL_SECONDS = 0.1
_POLL_SECONDS = 0.002
_MAX_WAIT_SECONDS = 0.1  # at most, each time: a busy window delays a job, and does not stop it


class JobCancelledError(Exception):
    """Stops a job that reports its progress and was cancelled."""


class Job:
    """A submitted job; `cancel` discards its result, and what would get it: a closed window is not kept by its job."""

    def __init__(
        self,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
        *,
        is_long: bool = False,
    ):
        self.work = work
        self.done = done
        self.failed = failed
        self.is_long = is_long
        self.is_cancelled = False

    def cancel(self) -> None:
        """Cancel the job: it does not start, or its result is dropped."""
        self.is_cancelled = True
        self.work = self.done = self.failed = _do_nothing


def _do_nothing(*_result: object) -> None:
    pass


def cancel(*jobs: Job | None) -> None:
    """Cancel the jobs among these."""
    for job in jobs:
        if job is not None:
            job.cancel()


class _Lane:
    """A queue of jobs, and the threads that work on it."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []


class Background:
    """Two threads that run short jobs in order, two for those that report, and the results for the Tk thread.

    A check before a start may wait for minutes until the memory of a model is estimated; meanwhile, thumbnails and
    captions appear as usual.
    """

    def __init__(self) -> None:
        self._short, self._long = _Lane(), _Lane()
        self._results: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._busy_until = 0.0  # of `time.perf_counter`

    def window_is_busy(self, seconds: float) -> None:
        """Note that the window is going to build or draw for about so long; jobs that report wait until then."""
        self._busy_until = max(self._busy_until, time.perf_counter() + seconds)

    def give_way(self, *_progress: object) -> None:
        """Wait while the window is busy; for jobs, also in place of a report."""
        until = time.perf_counter() + _MAX_WAIT_SECONDS
        while time.perf_counter() < min(self._busy_until, until):
            time.sleep(_POLL_SECONDS)

    def run(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None] | None = None,
    ) -> Job:
        """Run `work` on a thread; then `done(result)`, or `failed(error)`, on the thread that drains."""
        return self._submit(Job(work, done, failed or _log_failure))

    def run_reporting(
        self,
        work: Callable[[Report], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None] | None = None,
        *,
        progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
    ) -> Job:
        """Run `work(report)` like `run`; `progress` is called on the thread that drains, ten times a second at most.

        Once the job is cancelled, its next report stops it.
        """
        last_report = time.perf_counter()

        def report(what: str, number: int, total: int) -> None:
            nonlocal last_report
            if job.is_cancelled:
                raise JobCancelledError
            self.give_way()
            now = time.perf_counter()
            if now - last_report >= _REPORT_INTERVAL_SECONDS:
                last_report = now
                self._results.put(lambda: None if job.is_cancelled else progress(what, number, total))

        job = Job(lambda: work(report), done, failed or _log_failure, is_long=True)
        return self._submit(job)

    def _submit(self, job: Job) -> Job:
        lane = self._long if job.is_long else self._short
        lane.jobs.put(job)
        if len(lane.threads) < _NUM_THREADS:
            thread = threading.Thread(target=self._work, args=(lane.jobs,), name="darkroom-background", daemon=True)
            lane.threads.append(thread)
            thread.start()
        return job

    def drain(self, deadline: float) -> bool:
        """Deliver finished results until the deadline of `time.perf_counter`; return whether there were any."""
        has_drained = False
        while time.perf_counter() < deadline:
            try:
                hand_over = self._results.get_nowait()
            except queue.Empty:
                break
            has_drained = True
            notify(hand_over)
        return has_drained

    def _work(self, jobs: queue.SimpleQueue[Job]) -> None:
        while True:
            job = jobs.get()
            if not job.is_cancelled:
                self._results.put(_finish(job))
            del job  # keeps nothing of the last job alive while waiting for the next


class JobScope(Background):
    """Runs jobs on the threads of a background; those that are under way can be cancelled together."""

    def __init__(self, background: Background) -> None:
        super().__init__()
        self._background = background
        self._results = background._results
        self._scoped_jobs: WeakSet[Job] = WeakSet()

    def give_way(self, *progress: object) -> None:
        """Wait while the window is busy."""
        self._background.give_way(*progress)

    def cancel_all(self) -> None:
        """Cancel the jobs whose results have not been delivered."""
        for job in list(self._scoped_jobs):
            job.cancel()

    def _submit(self, job: Job) -> Job:
        self._scoped_jobs.add(job)
        return self._background._submit(job)


class OrderedWrites:
    """The writes of one file: one at a time, and an older one never replaces a newer one, whose thread was faster."""

    def __init__(self) -> None:
        self.last_written = 0  # the number of the newest one that is written
        self._last_asked = 0
        self._lock = threading.Lock()

    def following(self, write: Callable[[], object]) -> Callable[[], bool]:
        """Return a function for any thread that calls `write`, unless one asked for later has already written.

        It returns whether this one or a newer one is written; `write` raises or returns False where it could not.
        """
        self._last_asked += 1
        number = self._last_asked

        def write_in_order() -> bool:
            with self._lock:
                if number > self.last_written and write() is not False:
                    self.last_written = number
                return number <= self.last_written

        return write_in_order


def _finish(job: Job) -> Callable[[], None]:
    """Do the work and return the function that the Tk thread calls."""
    try:
        result = job.work()
    except Exception as error:  # noqa: BLE001 - the outer edge of a thread; delivered, and logged by default
        failure = error
        return lambda: None if job.is_cancelled else job.failed(failure)
    return lambda: None if job.is_cancelled else job.done(result)


def _log_failure(error: Exception) -> None:
    _log.error("A background job failed", exc_info=error)
