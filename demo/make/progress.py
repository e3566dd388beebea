"""Progress of making the demo model: reporting to the caller, and stopping on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# (stage, done, total, loss): `done` of `total` steps of the named stage; loss is 0.0 in stages without one.
Report = Callable[[str, int, int, float], None]


class DemoModelStopped(Exception):  # noqa: N818 - not an error: the user requested it
    """The caller requested a stop; nothing was written."""


@dataclass(frozen=True)
class Progress:
    """The two callbacks of the caller, called after every step."""

    report: Report
    should_stop: Callable[[], bool]

    def step(self, stage: str, done: int, total: int, loss: float = 0.0) -> None:
        """Report one finished step; raises DemoModelStopped if the caller requests a stop."""
        self.report(stage, done, total, loss)
        if self.should_stop():
            raise DemoModelStopped(f"Stopped in stage {stage!r} after {done} of {total} steps.")
