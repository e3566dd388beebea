"""How a run ends, and the backups it leaves: well, stopped, or by a fault."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from modules.optim.param_groups import TrainGroup
from modules.system.paths import from_root
from trainer.callbacks.dry_run import DryRunComplete, without_a_trace
from trainer.callbacks.saving import SavingCallback
from trainer.events import BackupSaved, PhaseChanged, RunFinished, WarningRaised
from trainer.methods.protocol import TrainingMethod
from trainer.run.checkpoint import write_state
from trainer.run.model import LoadedModel
from trainer.run.setup import RunSetup
from trainer.run.watchers import Watchers
from trainer.run_folder.backup import BackupInfo, remove_older, write_backup
from trainer.step.callback import DryRunState
from trainer.step.counters import Counters
from trainer.step.failures import explain
from trainer.step.loop import LoopOutcome, Training
from trainer.step.stepper import Stepper

logger = logging.getLogger("darkroom.run")


@dataclass(eq=False)
class Backups:
    """Writes the run's backups."""

    setup: RunSetup
    model: LoadedModel
    stepper: Stepper
    method: TrainingMethod
    plan: str
    watchers: Watchers
    _newest: tuple[Counters, BackupInfo] | None = None

    def write_last(self, counters: Counters) -> BackupInfo:
        """Return a backup of the run's last state: that of its last step, where it wrote one just now."""
        if self._newest is not None and self._newest[0] == counters and self._newest[1].path.is_dir():
            return self._newest[1]
        return self.write(counters)

    def write(self, counters: Counters) -> BackupInfo:
        """Write a complete backup, remove older ones as set, and tell it."""
        setup = self.setup
        setup.log.emit(PhaseChanged("backing_up", f"step {counters.step}"))
        backup = self._write(
            counters, lambda folder: self._write_state(folder, counters, self.model.groups, self.stepper)
        )
        remove_older(setup.run_dir, keep=setup.config.backup.keep)
        setup.log.emit(BackupSaved(counters.step, str(backup.path)))
        self._newest = counters, backup
        return backup

    def try_out(self, small: DryRunState) -> None:
        """Write a backup of a run in small where backups go, and give it up before it counts."""

        def write_files(folder: Path) -> None:
            self._write_state(folder, small.counters, small.groups, small.stepper)
            raise DryRunComplete

        with without_a_trace(self.setup.run_dir / "backup"):
            self._write(small.counters, write_files)

    def _write(self, counters: Counters, write_files: Callable[[Path], None]) -> BackupInfo:
        return write_backup(
            self.setup.run_dir,
            step=counters.step,
            epoch=counters.epoch,
            now=self.setup.clocks.now(),
            write=write_files,
        )

    def _write_state(self, folder: Path, counters: Counters, groups: Sequence[TrainGroup], stepper: Stepper) -> None:
        write_state(
            folder,
            config=self.setup.config,
            counters=counters,
            num_threads=self.setup.num_threads,
            plan=self.plan,
            groups=groups,
            stepper=stepper,
            method=self.method,
            validation=self.watchers.validation.search.state_dict(),
            rewards=self.watchers.rewards.search.state_dict() if self.watchers.rewards is not None else {},
        )


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run that is ready for its first step."""

    setup: RunSetup
    model: LoadedModel
    training: Training
    watchers: Watchers
    backups: Backups

    def close(self) -> None:
        """Let go of what outlives a step: hooks on the parts, open logs."""
        self.model.placement.close()
        if self.watchers.tensorboard is not None:
            with suppress(OSError):  # on a full disk the last numbers are lost, and how the run ended stands
                self.watchers.tensorboard.close()


def end(run: Prepared, outcome: LoopOutcome) -> None:
    """Write a last backup, as set, and then the result. The run can be resumed from the backup with more epochs.

    A backup that fails is a warning where the result could be written. Raises what went wrong with the result.
    """
    counters = run.training.counters
    backup = _last_backup(run) if run.setup.config.backup.at_end else None
    best, has_best = run.watchers.validation.search.best, _ends_with_best(run)
    result = _save_result(run.setup, run.watchers.saving, counters, best_step=best.step if has_best else None)
    message = {
        "finished": f"Finished after {counters.step} steps.",
        "nothing_left": f"Every part has stopped learning; ended after {counters.step} steps.",
        "stopped_early": f"Stopped early after {counters.step} steps: {_why_stopped_early(run.watchers)}",
    }[outcome]
    if has_best:
        message += f" The result is the best by validation, of step {best.step} (loss {best.loss:.4g})."
    backup_path = str(backup.path) if backup else ""
    run.setup.log.emit(RunFinished(outcome, counters.step, message, str(result), backup_path))


def end_stopped(run: Prepared) -> None:
    """Leave a backup to resume from, and then a usable file; only runs that end by themselves write the result.

    A usable file that fails is a warning: the backup holds all that was learned. Raises what went wrong with the
    backup; the usable file is then written all the same, where that is possible.
    """
    run.training.stepper.discard()
    run.setup.log.emit(PhaseChanged("stopping"))
    counters = run.training.counters
    try:
        backup = run.backups.write_last(counters)
    except Exception:
        _save_stopped(run, counters, advice="There is no backup of this step either: free some space.")
        raise
    saved = _save_stopped(run, counters, advice=f"Everything that was learned is in the backup {backup.path}.")
    message = f"Stopped after {counters.step} steps. It can be resumed from here."
    run.setup.log.emit(RunFinished("stopped", counters.step, message, saved, str(backup.path)))


def rescue(run: Prepared) -> None:
    """After a fault, leave a backup of the last full step where that is still possible: nothing learned is lost."""
    if run.training.counters.step and not run.training.stepper.is_moving:
        try:
            run.training.stepper.discard()
            run.backups.write_last(run.training.counters)
        except Exception:
            logger.exception("After the fault no backup could be written.")


def _last_backup(run: Prepared) -> BackupInfo | None:
    """Write the backup of a run that ends by itself; where that fails, warn."""
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


def _save_stopped(run: Prepared, counters: Counters, *, advice: str) -> str:
    """Write the usable file of a stopped run and return its path; where that fails, warn and return nothing."""
    try:
        return str(run.watchers.saving.save_on_the_way(counters))
    except Exception as error:
        logger.exception("The model of the stopped run could not be saved.")
        reason, _ = explain(error)
        run.setup.log.emit(WarningRaised(f"The model of step {counters.step} could not be saved. {reason}", advice))
        return ""


def _why_stopped_early(watchers: Watchers) -> str:
    """Return which measurements did not get better any more, and since when."""
    rewards = watchers.rewards
    is_by_reward = rewards is not None and rewards.search.should_stop and not watchers.validation.search.should_stop
    best = rewards.search.best if rewards is not None and is_by_reward else watchers.validation.search.best
    what = "measurements of the reward" if is_by_reward else "validations"
    since = f"better than that of step {best.step}." if best.step is not None else "a number."
    return f"{best.num_bad_evaluations} {what} in a row were not {since}"


def _ends_with_best(run: Prepared) -> bool:
    """Return whether the result is to be the best model and one was kept; where one was not, say so."""
    settings, saving = run.setup.config.validation, run.watchers.saving
    if not settings.keep_best or settings.result != "best":
        return False
    if run.watchers.validation.search.best.step is not None and saving.best_path.exists():
        return True
    run.setup.log.emit(
        WarningRaised(f"There is no {saving.best_path.name} in the run's save folder; the result is the last model.")
    )
    return False


def _save_result(setup: RunSetup, saving: SavingCallback, counters: Counters, *, best_step: int | None) -> Path:
    """Write the result to its place; where that fails after all, into the run's own folder, and say so.

    It is a copy of the best model, where its step is given, else the model as it is.
    """

    def write(path: Path) -> None:
        if best_step is None:
            saving.save(path, counters, is_final=True)
        else:
            saving.copy_best(path, best_step)

    destination = from_root(setup.config.output.destination)
    try:
        if setup.config.output.never_replace and destination.exists():
            raise FileExistsError("it exists by now, and no file may be replaced")
        write(destination)
    except OSError as error:
        fallback = setup.run_dir / "save" / destination.name
        setup.log.emit(
            WarningRaised(f"The result could not be written to {destination} ({error}).", f"It is in {fallback}.")
        )
        write(fallback)
        return fallback
    return destination
