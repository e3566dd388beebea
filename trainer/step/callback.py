"""What the loop and the dry run ask of a callback. The callbacks themselves are in `trainer/callbacks`, above."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from modules.optim.param_groups import TrainGroup
from trainer.step.counters import Counters
from trainer.step.stepper import StepOutcome, Stepper


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


@dataclass(frozen=True, slots=True)
class StepView:
    """A step that was just finished: the counters before and after it, what it came to, how long it took."""

    before: Counters
    now: Counters
    outcome: StepOutcome
    seconds: float
    epoch_steps: int
    training_parts: tuple[str, ...]


class Callback(Protocol):
    """Something that happens beside the steps. It never changes what the next step does."""

    def after_step(self, view: StepView) -> None:
        """Called after every step, in the order the run lists its callbacks."""
        ...

    def dry_run_checks(self, small: DryRunState) -> Sequence[DryRunCheck]:
        """Return what of its work, where that is enabled, a run should try once before its first step."""
        ...
