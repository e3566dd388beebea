"""The backups that a run writes: its state, its best models so far, and the parts of other processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.optim.param_groups import TrainGroup
from trainer.callbacks.saving import BEST_KINDS
from trainer.callbacks.side_output import DryRunComplete, discarded_write
from trainer.events import BackupSaved, PhaseChanged
from trainer.methods.protocol import TrainingMethod
from trainer.run.callbacks import RunCallbacks
from trainer.run.checkpoint import write_shards_of, write_state
from trainer.run.model import LoadedModel
from trainer.run.setup import RunSetup
from trainer.run_folder.backup import BackupInfo, remove_older, write_backup
from trainer.step.callback import DryRunState
from trainer.step.counters import Counters
from trainer.step.loop import Training
from trainer.step.meeting import Meeting
from trainer.step.stepper import Stepper

_SHARDED_STATE = "sharded state"
_STEP = "full step"
_GUARDS = "guards"  # a key in the state of the rewards, next to the keys of the search


@dataclass(eq=False)
class Backups:
    """Writes the run's backups."""

    setup: RunSetup
    model: LoadedModel
    stepper: Stepper
    method: TrainingMethod
    plan: str
    callbacks: RunCallbacks
    meeting: Meeting
    _newest: tuple[Counters, frozenset[str], BackupInfo] | None = None

    def write_last(self, counters: Counters) -> BackupInfo:
        """Return a backup of the run's last state; reuses the newest backup if it is of this state.

        After the same step the method may have sampled what it must keep: images that a person has chosen among.
        """
        if self._newest is not None:
            *state, backup = self._newest
            if state == [counters, self._contents(counters)] and backup.path.is_dir():
                return backup
        return self.write(counters)

    def write(self, counters: Counters) -> BackupInfo:
        """Write a complete backup, remove older ones as set, and report it."""
        setup = self.setup
        setup.log.emit(PhaseChanged("backing_up", f"step {counters.step}"))

        def write_files(folder: Path) -> None:
            self._write_state(folder, counters, self.model.groups, self.stepper)
            for by in BEST_KINDS:
                self.callbacks.saving.link_best(by, folder)

        backup = self._write(counters, write_files)
        remove_older(setup.run_dir, keep=setup.config.backup.keep)
        setup.log.flush()  # the reported backup has its history even after a power failure
        setup.log.emit(BackupSaved(counters.step, str(backup.path)))
        self._newest = counters, self._contents(counters), backup
        return backup

    def _contents(self, counters: Counters) -> frozenset[str]:
        """Return the names of the entries that the method keeps in a backup of a step."""
        return frozenset(self.method.state_dict(counters.step))

    def try_out(self, state: DryRunState) -> None:
        """Write a backup of the dry run into the backup folder, and discard it before it is complete."""

        def write_files(folder: Path) -> None:
            self._write_state(folder, state.counters, state.groups, state.stepper)
            raise DryRunComplete

        with discarded_write(self.setup.run_dir / "backup"):
            self._write(state.counters, write_files)

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
            validation=self.callbacks.validation.search.state_dict(),
            rewards=_state_of_rewards(self.callbacks),
        )
        if self.model.sharded and groups is self.model.groups:  # not of a dry run, which has copies
            self.meeting.share(_SHARDED_STATE, folder)

    def are_at(self, step: int) -> bool:
        """Return whether all processes have finished a step, and none has begun to change its weights for the next."""
        return all(last_step == step for last_step in self.meeting.share(_STEP))

    def offer_step(self, training: Training) -> None:
        """Let the main process query the last full step of this one."""
        self.meeting.offer(_STEP, lambda _: None if self.stepper.is_moving else training.counters.step)

    def __post_init__(self) -> None:
        """Let the other processes write their parts of a backup."""
        self.meeting.offer(
            _SHARDED_STATE,
            lambda folder: write_shards_of(
                folder,
                self.model.sharded,
                groups=self.model.groups,
                stepper=self.stepper,
                process=self.meeting.rank.index,
            ),
        )


def _state_of_rewards(callbacks: RunCallbacks) -> dict[str, Any]:
    if callbacks.rewards is None:
        return {}
    return {**callbacks.rewards.search.state_dict(), _GUARDS: callbacks.guards.state_dict()}


def split_state_of_rewards(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the state of the rewards in a backup into the states of the search and of the guards."""
    return {name: value for name, value in state.items() if name != _GUARDS}, state.get(_GUARDS, {})
