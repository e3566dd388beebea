"""The dry run: before the first step everything that the run will do is tried once, so that errors show early.

This file defines the order and how a failure is reported. The check of the training step is in
`trainer/dry_run/step.py`, the others are in the callbacks' `dry_run_checks`. Afterwards every bit of the run's state is
unchanged: the checks use small copies, evaluation mode, or files that are discarded during the write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from modules.memory.placement import free_cached_memory
from modules.optim.param_groups import TrainGroup
from modules.system.devices import seeded_global_rng
from modules.system.seeds import derive_seed
from trainer.commands import StopRequested
from trainer.dry_run.step import DryRunStep
from trainer.events import PhaseChanged
from trainer.ranks import LostProcessError
from trainer.step.callback import DryRunCheck
from trainer.step.failures import BranchError, explain, is_out_of_memory
from trainer.step.freezing import training_parts
from trainer.step.loop import Training
from trainer.step.stepper import Stepper


def dry_run(
    training: Training, stepper_of: Callable[[Sequence[TrainGroup]], Stepper], *, check: Callable[[], None]
) -> None:
    """Try every enabled branch of a run once, without lasting effects.

    `stepper_of(groups)` builds a stepper like the run's own; `check()` is called before each branch and
    raises StopRequested once the run is to stop. Raises BranchError, which names the branch and its reason.
    """
    if not training_parts(training.groups) or training.counters.epoch >= training.epochs:
        return  # the run ends at once
    context = training.context
    try:
        with seeded_global_rng(derive_seed(context.run_seed, "dry run"), context.device):
            dry_run_step = DryRunStep(training, stepper_of)
            for dry_run_check in dry_run_step.dry_run_checks():
                _carry_out(training, dry_run_check, check)
            with dry_run_step.room_for_state(context.device):
                for callback in training.callbacks:
                    for dry_run_check in callback.dry_run_checks(dry_run_step.state):
                        _carry_out(training, dry_run_check, check)
    finally:
        free_cached_memory(context.device)


def _carry_out(training: Training, dry_run_check: DryRunCheck, check: Callable[[], None]) -> None:
    check()
    training.log.emit(PhaseChanged("dry_run", dry_run_check.what))
    try:
        dry_run_check.try_once()
    except (StopRequested, LostProcessError):
        raise
    except Exception as error:
        raise _failure(dry_run_check, error) from error


def _failure(dry_run_check: DryRunCheck, error: Exception) -> BranchError:
    reason, advice = explain(error)
    if is_out_of_memory(error):
        reason, advice = "There was not enough memory.", dry_run_check.if_too_large
    return BranchError(f"The dry run before the training failed at {dry_run_check.what}. {reason}", advice=advice)
