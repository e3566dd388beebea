"""Waiting for work in a thread of its own, so that a stop takes effect meanwhile."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_SLICE_SECONDS = 0.1


class _Work(Generic[T]):
    """Work in a thread of its own, and how it ended."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.is_done = threading.Event()
        self.results: list[T] = []
        self.error: BaseException | None = None
        self._work = work
        threading.Thread(target=self._run, name="darkroom-work", daemon=True).start()

    def _run(self) -> None:
        try:
            self.results.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self.error = error
        self.is_done.set()


def wait_for(
    work: Callable[[], T], *, check: Callable[[], None], cancel: Callable[[], None], seconds: float = math.inf
) -> T:
    """Return the result of `work()`, which runs in a thread of its own; `check()` is called ten times a second.

    Raises what `work` raises, TimeoutError after `seconds`, and what `check` raises. In the last two cases `cancel()`
    is called first, after which `work` has to end. Time in which `check` waits, as in a pause, does not count.
    """
    running = _Work(work)
    try:
        for _ in itertools.count() if math.isinf(seconds) else range(max(1, round(seconds / _SLICE_SECONDS))):
            if running.is_done.wait(_SLICE_SECONDS):
                break
            check()
        else:
            raise TimeoutError
    except BaseException:
        cancel()
        raise
    if running.error is not None:
        raise running.error
    return running.results[0]
