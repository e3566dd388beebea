"""Waiting for what another program computes, so that a stop of the run takes effect meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
_SLICE_SECONDS = 0.1


def nothing_to_stop() -> None:
    """Do nothing: there is no run to stop."""


def ignore(message: str, advice: str) -> None:
    """Do nothing: there is no window or log to warn."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How to wait within a run.

    `check()` may raise to stop the run, and waits while it is paused. `sleep(seconds)` waits for a tenth of a second.
    `warn(message, advice)` reports that the run waits.
    """

    check: Callable[[], None] = nothing_to_stop
    sleep: Callable[[float], None] = time.sleep
    warn: Callable[[str, str], None] = ignore

    def rest(self, seconds: float) -> None:
        """Wait for some seconds, and check in between."""
        for _ in range(max(1, round(seconds / _SLICE_SECONDS))):
            self.check()
            self.sleep(_SLICE_SECONDS)


class _Work(Generic[T]):
    """Work in a thread of its own, and how it ended."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.is_done = threading.Event()
        self.results: list[T] = []
        self.error: BaseException | None = None
        self._work = work
        threading.Thread(target=self._run, name="darkroom-reward", daemon=True).start()

    def _run(self) -> None:
        try:
            self.results.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self.error = error
        self.is_done.set()


def wait_for(work: Callable[[], T], *, seconds: float, check: Callable[[], None], cancel: Callable[[], None]) -> T:
    """Return the result of `work()`, which runs in a thread of its own; `check()` is called ten times a second.

    Raises what `work` raises, TimeoutError after `seconds`, and what `check` raises. In the last two cases `cancel()`
    is called first, after which `work` has to end. Time in which `check` waits, as in a pause, does not count.
    """
    running = _Work(work)
    try:
        for _ in range(max(1, round(seconds / _SLICE_SECONDS))):
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
