"""How the making of the demo model tells its caller how far it is, and learns that it should stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# (stage, done, total, loss): `done` of `total` steps of the named stage; loss is 0.0 in stages without one.
Report = Callable[[str, int, int, float], None]


class DemoModelStopped(Exception):  # noqa: N818 - a wish of the user, no error
    """The caller asked to stop; nothing was written."""


@dataclass(frozen=True)
class Progress:
    """The two callbacks of the caller, asked after every step."""

    report: Report
    should_stop: Callable[[], bool]

    def step(self, stage: str, done: int, total: int, loss: float = 0.0) -> None:
        """Report one finished step; raises DemoModelStopped if the caller wants no further one."""
        self.report(stage, done, total, loss)
        if self.should_stop():
            raise DemoModelStopped(f"Stopped in stage {stage!r} after {done} of {total} steps.")
