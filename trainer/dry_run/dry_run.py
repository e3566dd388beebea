"""The dry run: before the first step everything that the run will do is done once, so that nothing fails first later.

It knows the order and how a failure is told. How a thing is done in small is known where it is done: the training step
in `trainer/dry_run/step.py`, the rest in the callbacks' `dry_run_checks`. Afterwards every bit of the run's state is
what it was: what is tried works on small copies, under evaluation, or with files that are given up in mid-write.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from modules.memory.placement import free_cached_memory
from modules.optim.param_groups import TrainGroup
from modules.system.global_rng import seeded_global_rng
from modules.system.seeds import derive_seed
from trainer.callbacks.dry_run import DryRunCheck
from trainer.commands import StopRequested
from trainer.dry_run.step import DryRunStep
from trainer.events import PhaseChanged
from trainer.run.assemble import build_stepper
from trainer.run.endings import Prepared
from trainer.run.failures import BranchError, explain, is_out_of_memory
from trainer.step.freezing import training_parts
from trainer.step.stepper import Stepper


def dry_run(run: Prepared) -> None:
    """Try every enabled branch of a run once and leave no trace.

    Raises BranchError, which names the branch and its reason, or StopRequested.
    """
    training, setup = run.training, run.setup
    if not training_parts(training.groups) or training.counters.epoch >= training.epochs:
        return  # the run ends at once
    total_steps = training.loader.plans.total_steps(training.epochs)

    def stepper_of(groups: Sequence[TrainGroup]) -> Stepper:
        model = dataclasses.replace(run.model, groups=groups)
        return build_stepper(setup.config, model, setup.machine, total_steps=total_steps)

    device = setup.machine.train_device
    try:
        with seeded_global_rng(derive_seed(setup.config.general.seed, "dry run"), device):
            dry_run_step = DryRunStep(training, stepper_of)
            for dry_run_check in dry_run_step.dry_run_checks():
                _carry_out(run, dry_run_check)
            with dry_run_step.room_for_state(device):
                for callback in training.callbacks:
                    for dry_run_check in callback.dry_run_checks(dry_run_step.small):
                        _carry_out(run, dry_run_check)
    finally:
        free_cached_memory(device)


def _carry_out(run: Prepared, dry_run_check: DryRunCheck) -> None:
    run.setup.desk.check()
    run.setup.log.emit(PhaseChanged("dry_run", dry_run_check.what))
    try:
        dry_run_check.try_once()
    except StopRequested:
        raise
    except Exception as error:
        raise _failure(dry_run_check, error) from error


def _failure(dry_run_check: DryRunCheck, error: Exception) -> BranchError:
    reason, advice = explain(error)
    if is_out_of_memory(error):
        reason, advice = "There was not enough memory for it.", dry_run_check.if_too_large
    return BranchError(
        f"Before the training everything is tried once, and {dry_run_check.what} failed. {reason}", advice=advice
    )
