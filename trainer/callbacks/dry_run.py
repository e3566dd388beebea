"""What a run tries once before its first step: each room says how its own work is tried in small, leaving nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.optim.param_groups import TrainGroup
from trainer.step.counters import Counters
from trainer.step.stepper import Stepper


@dataclass(frozen=True, eq=False)
class DryRunCheck:
    """One branch of a run: what it is, as in "a training step", what to do if memory is short, and how it is tried."""

    what: str
    if_too_large: str
    try_once: Callable[[], None]


@dataclass(frozen=True, eq=False)
class DryRunState:
    """Where a run is, and a few small weights with what moves them: a run in small, to be tried and thrown away."""

    counters: Counters
    groups: Sequence[TrainGroup]
    stepper: Stepper


class DryRunComplete(Exception):  # noqa: N818 - no error: it ends a write of which one tensor is enough
    """Raised in the middle of an atomic write to give it up; what was there before stands."""


def enough(_done_bytes: int, _total_bytes: int) -> None:
    """End a write after its first tensor: for writers that take `on_written`."""
    raise DryRunComplete


@contextlib.contextmanager
def without_a_trace(folder: Path) -> Iterator[None]:
    """Let a write into a folder be given up by `DryRunComplete`; folders that were made for it are removed again."""
    made = [f for f in (folder, *folder.parents) if not f.exists()]
    try:
        yield
    except DryRunComplete:
        pass
    finally:
        for each in made:
            with contextlib.suppress(OSError):
                each.rmdir()
