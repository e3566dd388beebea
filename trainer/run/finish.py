"""The end of a run (finished, stopped or failed), and its result."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from modules.data.dataset import Dataset
from modules.system.atomic import make_folder
from modules.system.file_errors import UnconfirmedError, describe_file_error, plain_reason
from modules.system.file_lock import LockTaken, locked_soon
from modules.system.paths import from_root, queue_file
from modules.system.problem import count
from trainer.callbacks.best import Search
from trainer.callbacks.saving import BestBy, SavingCallback
from trainer.commands import CommandDesk, StopAgreed, StopRequested
from trainer.events import PhaseChanged, RunFinished, WarningRaised
from trainer.methods.reward_models import RewardModels
from trainer.run.backups import Backups
from trainer.run.callbacks import RunCallbacks
from trainer.run.model import LoadedModel
from trainer.run.recipe import finish_recipe
from trainer.run.setup import RunSetup
from trainer.run_folder.backup import BackupInfo
from trainer.run_folder.destination import note_destination, taken_by
from trainer.run_folder.event_log import EventLog
from trainer.run_folder.result import RESULTS_FILE, model_files, record_result
from trainer.step.counters import Counters
from trainer.step.failures import explain
from trainer.step.loop import LoopOutcome, Training
from trainer.step.meeting import Meeting

# A run waits while another one writes its result to the same place: silently at first, then with a status.
_SILENT_SECONDS, _PATIENCE_SECONDS = 2.0, 600.0

logger = logging.getLogger("darkroom.run")


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """A run that is ready for its first step; `validation` are its validation images."""

    setup: RunSetup
    model: LoadedModel
    training: Training
    callbacks: RunCallbacks
    backups: Backups
    meeting: Meeting
    validation: Dataset
    reward_models: RewardModels | None = None

    def close(self) -> None:
        """Remove hooks from the parts and close open logs."""
        self.setup.desk.freed_memory = nullcontext
        self.model.placement.close()
        if self.model.compilation is not None:
            self.model.compilation.close()
        self.callbacks.profiling.close()
        if self.callbacks.tensorboard is not None:
            self.callbacks.tensorboard.close()
        if self.reward_models is not None:
            self.reward_models.close()


def end(run: PreparedRun, outcome: LoopOutcome) -> None:
    """Write a last backup, as set, and then the result. With more epochs the run can be resumed from the backup.

    A backup that fails is a warning if the result could be written. Raises the error that prevented the result, and
    StopAgreed if the run is to stop while it waits for another one to write there.
    """
    counters = run.training.counters
    backup = _last_backup(run) if run.setup.config.backup.at_end else None
    best = _best_model(run)
    with _wait_for_other_runs(from_root(run.setup.config.output.destination), run.setup.log, run.setup.desk):
        result = _save_result(run.setup, run.callbacks.saving, counters, best)
    finish_recipe(run.setup, result, step=counters.step)
    steps = count(counters.step, "step")
    message = {
        "finished": f"Finished after {steps}.",
        "nothing_left": f"Training of every part has stopped; the run ended after {steps}.",
        "stopped_early": f"Stopped early after {steps}: {_why_stopped_early(run.callbacks)}",
    }[outcome]
    if best is not None:
        message += f" The result is the best model by {best.by}, from step {best.step} ({best.figure})."
    backup_path = str(backup.path) if backup else ""
    run.setup.log.emit(RunFinished(outcome, counters.step, message, str(result), backup_path))


def end_stopped(run: PreparedRun) -> None:
    """Write a backup to resume from, and then a usable model file. The final result is not written for a stopped run.

    A model file that fails is a warning: the backup contains everything that was trained. Raises the error that
    prevented the backup; the model file is then still written if possible.
    """
    run.training.stepper.discard()
    run.setup.log.emit(PhaseChanged("stopping"))
    counters = run.training.counters
    try:
        backup = run.backups.write_last(counters)
    except Exception:
        _save_stopped(run, counters, advice="There is no backup of this step either. Free some disk space.")
        raise
    saved = _save_stopped(run, counters, advice=f"The trained weights are in the backup {backup.path}.")
    message = f"Stopped after {count(counters.step, 'step')}. The run can be resumed from here."
    run.setup.log.emit(RunFinished("stopped", counters.step, message, saved, str(backup.path)))


def rescue(run: PreparedRun) -> None:
    """After an error, write a backup of the last full step if that is still possible, so that no training is lost.

    Processes write sharded weights together. That is not possible after an error within a step: the others wait for a
    part of it that never comes.
    """
    if not run.training.counters.step or run.training.stepper.is_moving:
        return
    if run.model.sharded and run.training.is_in_step:
        return
    try:
        run.training.stepper.discard()
        if not run.model.sharded or run.backups.are_at(run.training.counters.step):
            run.backups.write_last(run.training.counters)
    except Exception:
        logger.exception("No backup could be written after the error.")


def _last_backup(run: PreparedRun) -> BackupInfo | None:
    """Write the backup of a run that ends by itself; warn if that fails."""
    try:
        return run.backups.write_last(run.training.counters)
    except Exception as error:
        logger.exception("The last backup could not be written.")
        reason, _ = explain(error)
        run.setup.log.emit(
            WarningRaised(
                f"The last backup could not be written. {reason}", "The run can only be resumed from an older backup."
            )
        )
        return None


def _save_stopped(run: PreparedRun, counters: Counters, *, advice: str) -> str:
    """Write the model file of a stopped run and return its path; if that fails, warn and return an empty string."""
    try:
        return str(run.callbacks.saving.save_step(counters))
    except Exception as error:
        logger.exception("The model of the stopped run could not be saved.")
        reason, _ = explain(error)
        run.setup.log.emit(WarningRaised(f"The model of step {counters.step} could not be saved. {reason}", advice))
        return ""


def _why_stopped_early(callbacks: RunCallbacks) -> str:
    """Return which guard ended the run, or which measurements stopped improving, and since when."""
    rewards = callbacks.rewards
    if callbacks.guards.reason:
        return callbacks.guards.reason
    is_by_reward = rewards is not None and rewards.search.should_stop and not callbacks.validation.search.should_stop
    best = rewards.search.best if rewards is not None and is_by_reward else callbacks.validation.search.best
    what = "reward evaluations" if is_by_reward else "validations"
    reason = f"did not improve on step {best.step}." if best.step is not None else "were NaN or infinite."
    return f"{best.num_bad_evaluations} {what} in a row {reason}"


@dataclass(frozen=True, slots=True)
class _BestModel:
    """The best model of a run that becomes its result: its measure ("validation" or "reward"), its step, its figure."""

    by: BestBy
    step: int
    figure: str


def _best_model(run: PreparedRun) -> _BestModel | None:
    """Return the best model if it is to be the result and was kept; warn if it was not."""
    config, callbacks = run.setup.config, run.callbacks
    search: Search
    by: BestBy
    if callbacks.rewards is not None and config.reward.keep_best and config.reward.result == "best":
        by, search, sign, name = "reward", callbacks.rewards.search, -1, "reward"
    elif config.validation.keep_best and config.validation.result == "best":
        by, search, sign, name = "validation", callbacks.validation.search, 1, "loss"
    else:
        return None
    path, best = callbacks.saving.best_path(by), search.best
    if best.step is not None and best.loss is not None and callbacks.saving.has_best(by):
        return _BestModel(by, best.step, f"{name} {sign * best.loss:.4g}")
    run.setup.log.emit(WarningRaised(f"{path.name} is not in the run's save folder. The result is the last model."))
    return None


def _save_result(setup: RunSetup, saving: SavingCallback, counters: Counters, best: _BestModel | None) -> Path:
    """Write the result to its destination; if that fails, write it to the run's folder and warn.

    With `best` the result is a copy of the best model, otherwise the model in its current state.
    """

    def write(path: Path) -> None:
        if best is None:
            saving.save(path, counters, is_final=True)
        else:
            saving.copy_best(path, best.step, best.by)

    destination = result = _free_destination(setup)
    try:
        if setup.config.output.never_replace and destination.exists():
            raise FileExistsError("the file exists and must not be replaced")
        write(destination)
    except UnconfirmedError as error:
        setup.log.emit(WarningRaised(*describe_file_error(error)))
    except OSError as error:
        result = setup.run_dir / "save" / destination.name
        reason = describe_file_error(error)[0] if error.errno is not None else f"{plain_reason(error)}."
        setup.log.emit(
            WarningRaised(f"The result could not be written to {destination}. {reason}", f"It is saved as {result}.")
        )
        write(result)
    _record(setup, result, destination, counters)
    return result


@contextmanager
def _wait_for_other_runs(destination: Path, log: EventLog, desk: CommandDesk) -> Iterator[None]:
    """Wait while another run of this user writes its result to a place, so that each finds the files of the one before.

    Without that, the model of a run that ends at the same time could be replaced. The result is written in any case,
    with a warning if the other run has not finished after ten minutes. Raises StopAgreed if this one is to stop first.
    """

    def check() -> None:
        try:
            desk.check()
        except StopRequested:  # other processes of this run wait for its last tasks
            raise StopAgreed from None

    file = queue_file().with_name("results") / f"{zlib.crc32(os.fsencode(destination)):08x}.lock"
    lock = None
    try:
        make_folder(file.parent)
        try:
            lock = locked_soon(file, patience_seconds=_SILENT_SECONDS, check=check)
        except LockTaken:
            log.emit(PhaseChanged("saving", f"waiting for another run to write {destination.name}"))
            lock = locked_soon(file, patience_seconds=_PATIENCE_SECONDS, check=check)
    except LockTaken:
        minutes = f"{_PATIENCE_SECONDS / 60:.0f} minutes"
        log.emit(
            WarningRaised(
                f"Another run was still writing {destination.name} after {minutes}; this run's result is written now.",
                "Compare the results of both runs: one may have replaced the other.",
            )
        )
    except OSError as error:
        logger.warning("The place of the result could not be locked: %s", error)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _free_destination(setup: RunSetup) -> Path:
    """Return where to write the result: under another name if another run has written there since this one started."""
    config, run_dir = setup.config, setup.run_dir
    asked = config.output.destination
    taken = None if config.output.never_replace else taken_by(config, run_dir)
    if taken is None:
        return from_root(asked)
    setup.log.emit(WarningRaised(taken.message, "It was written while this run trained."))
    with suppress(OSError):  # a resumed run would look for a free name again
        note_destination(run_dir, asked=asked, chosen=taken.free)
    return from_root(taken.free)


def _record(setup: RunSetup, result: Path, destination: Path, counters: Counters) -> None:
    """Record the result in the run's folder, which proves that the run is complete; warn if that fails."""
    try:
        record_result(setup.run_dir, result, model_files(result), step=counters.step, destination=destination)
    except OSError as error:
        setup.log.emit(
            WarningRaised(
                f"The result is written to {result}, but not its record, {RESULTS_FILE}. "
                f"{describe_file_error(error)[0]}",
                "If the run is resumed, it writes its result once more.",
            )
        )
