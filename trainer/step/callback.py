"""The protocol of callbacks, used by the loop and the dry run. The callbacks themselves are in `trainer/callbacks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from modules.optim.param_groups import TrainGroup
from trainer.step.counters import Counters
from trainer.step.outcome import StepOutcome
from trainer.step.stepper import Stepper


@dataclass(frozen=True, eq=False)
class DryRunCheck:
    """One branch of a run to try: its name (such as "a training step"), advice if memory runs out, and a function."""

    what: str
    if_too_large: str
    try_once: Callable[[], None]


@dataclass(frozen=True, eq=False)
class DryRunState:
    """The state of a dry run: the run's counters, and a few small parameters with a separate stepper."""

    counters: Counters
    groups: Sequence[TrainGroup]
    stepper: Stepper


@dataclass(frozen=True, slots=True)
class StepView:
    """A step that has just finished: the counters before and after it, its outcome and its duration."""

    before: Counters
    now: Counters
    outcome: StepOutcome
    seconds: float
    epoch_steps: int
    training_parts: tuple[str, ...]


class Reporter(Protocol):
    """Reports the outcome of steps. It needs neither the model nor its memory."""

    def after_step(self, view: StepView) -> None:
        """Called for every step once its outcome is known, perhaps while the next step is computed."""
        ...


class Callback(Protocol):
    """Work done between steps. It never changes the next step."""

    def is_due(self, before: Counters, now: Counters) -> bool:
        """Return whether there is work after a step with these counters before and after it."""
        ...

    def after_step(self, view: StepView) -> None:
        """Called after a step if the work of any callback is due, in the order the run lists them, before the next."""
        ...

    def dry_run_checks(self, state: DryRunState) -> Sequence[DryRunCheck]:
        """Return the checks of its enabled work that a run should try once before its first step."""
        ...
