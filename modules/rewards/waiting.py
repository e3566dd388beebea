"""How to wait within a run, so that a stop takes effect meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

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
