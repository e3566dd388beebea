"""What the loop tells its callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trainer.callbacks.dry_run import DryRunCheck, DryRunState
from trainer.step.counters import Counters
from trainer.step.stepper import StepOutcome


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
