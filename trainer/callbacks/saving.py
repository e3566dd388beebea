"""Saves during training: model files that other programs can use, to compare and choose from, and backups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch

from modules.families.kinds.identify import who_loads_file
from modules.settings.every import Every
from trainer.callbacks.side_output import SideOutput, discarded_write, end_write
from trainer.commands import BackupNow, CommandDesk, SaveNow
from trainer.events import Event, ModelSaved, PhaseChanged
from trainer.export.exporter import Exporter, SaveMoment
from trainer.run_folder.backup import BEST
from trainer.run_folder.result import copy_model, link_model
from trainer.step.callback import DryRunCheck, DryRunState, StepView
from trainer.step.counters import Counters

NEVER = Every()
BestBy = Literal["validation", "reward"]
BEST_KINDS: tuple[BestBy, ...] = get_args(BestBy)
_BEST: Mapping[BestBy, str] = {"validation": "-best", "reward": "-best-reward"}  # the ends of the files' names


class SavingCallback:
    """Writes `<run>/save/<name>-step-00000010.safetensors` (or a folder of that name) when it is due or requested."""

    def __init__(
        self,
        every: Every,
        *,
        skip_first: Every = NEVER,
        destination: Path,
        folder: Path,
        name: str,
        format_name: str,
        exporter: Exporter,
        values: Callable[[], AbstractContextManager[Mapping[str, torch.Tensor]]],
        now: Callable[[], datetime],
        desk: CommandDesk,
        emit: Callable[[Event], None],
    ) -> None:
        """Saves are due at each `every`, after the first `skip_first` of the run.

        `destination` is the path of the result, `folder` the place of intermediate saves. `values()` is a context that
        yields the weights to save, by full parameter name: the EMA weights if there are any.
        """
        self._every = every
        self._skip_first = skip_first
        self._destination = destination
        self._folder = folder
        self._name = name
        self._format_name = format_name
        self._exporter = exporter
        self._values = values
        self._own_best: set[BestBy] = set()
        self._now = now
        self._desk = desk
        self._emit = emit
        self._output = SideOutput("An intermediate save", folder, emit)

    def is_due(self, before: Counters, now: Counters) -> bool:
        """Return whether it is due or requested."""
        is_due = self._every.is_due(before.moment, now.moment, skip_first=self._skip_first)
        return self._desk.has(SaveNow) or is_due

    def after_step(self, view: StepView) -> None:
        """Save if it is due or requested."""
        if self.is_due(view.before, view.now):
            if self._desk.take(SaveNow):
                self._output.is_failing = False  # a requested save that fails is reported each time
            with self._output.warn_on_failure():
                self.save_step(view.now)

    def save_step(self, counters: Counters) -> Path:
        """Write a save under the name of its step and return its path."""
        path = self._path(counters)
        self.save(path, counters, is_final=False)
        return path

    def best_path(self, by: BestBy) -> Path:
        """Return the path of the best model by validation or by reward."""
        return self._folder / f"{self._name}{self.best_ending(by)}"

    def best_ending(self, by: BestBy) -> str:
        """Return how the name of the best model ends, after the name of the result."""
        return f"{_BEST[by]}{self._exporter.suffix}"

    def save_best(self, counters: Counters, by: BestBy) -> None:
        """Save the model as the best, replacing the previous one."""
        self.save(self.best_path(by), counters, is_final=False, best_by=by)
        self._own_best.add(by)

    def has_best(self, by: BestBy) -> bool:
        """Return whether the best model belongs to this run, and not to a branch that it has abandoned."""
        return by in self._own_best and self.best_path(by).exists()

    def restore_best(self, by: BestBy, source: Path) -> None:
        """Make the best model in the backup from which the run resumes its best model again. Raises OSError."""
        place = self.best_path(by)
        if not (place.is_file() and place.samefile(source)):
            copy_model(source, place)
        self._own_best.add(by)

    def link_best(self, by: BestBy, folder: Path) -> None:
        """Add the best model to a backup, if there is one. Raises OSError."""
        if self.has_best(by):
            link_model(self.best_path(by), folder / BEST / by / f"model{self._exporter.suffix}")

    def dry_run_checks(self, state: DryRunState) -> list[DryRunCheck]:
        """Return the checks of a save to both paths: of the result, and of a stop or an intermediate save."""
        paths = {"saving during training": self._path(state.counters), "saving the result": self._destination}
        return [
            DryRunCheck(what, "Close other programs.", partial(self._begin, path, state.counters))
            for what, path in paths.items()
        ]

    def _begin(self, path: Path, counters: Counters) -> None:
        """Start to write the model to a path and discard it after the first tensor; an existing file stays.

        Instead of a missing folder its nearest parent is written to: a folder that is made and removed again may be
        the one to which another run is writing.
        """
        folder = next(parent for parent in path.parents if parent.exists())
        with discarded_write(folder), self._values() as values:
            self._exporter.save(folder / path.name, values, self._moment(counters), on_written=end_write)

    def _moment(self, counters: Counters) -> SaveMoment:
        return SaveMoment(self._now(), counters.step, counters.epoch)

    def _path(self, counters: Counters) -> Path:
        return self._folder / f"{self._name}-step-{counters.step:08d}{self._exporter.suffix}"

    def save(self, path: Path, counters: Counters, *, is_final: bool, best_by: BestBy | None = None) -> None:
        """Write the model to a path and report it. Raises DarkroomError if a weight is not finite, and OSError."""
        self._emit(PhaseChanged("saving", path.name))
        with self._values() as values:
            self._exporter.save(path, values, self._moment(counters))
        self._report(path, counters.step, is_final=is_final, best_by=best_by)

    def copy_best(self, path: Path, step: int, by: BestBy) -> None:
        """Copy the best model, saved after `step`, to the result's path and report it. Raises OSError."""
        self._emit(PhaseChanged("saving", path.name))
        copy_model(self.best_path(by), path)
        self._report(path, step, is_final=True, best_by=by)

    def _report(self, path: Path, step: int, *, is_final: bool, best_by: BestBy | None) -> None:
        _, loads = who_loads_file(path)
        answers = {x.program: x.answer for x in loads if x.is_main}
        complete = tuple(program for program, answer in answers.items() if answer == "yes")
        needs = tuple(f"{x.program}: {x.note}" for x in loads if x.is_main and x.complete and x.note)
        reasons = {x.program: x.note for x in loads if x.is_main and not x.complete and x.note}
        self._emit(
            ModelSaved(
                step,
                str(path),
                self._format_name,
                is_final,
                complete,
                answers,
                needs,
                reasons,
                best_by or "",
            )
        )


class BackupCallback:
    """Runs last after a step, so that a backup contains the results of the other callbacks.

    A full disk does not end the run: what it has learned since the last backup would be lost.
    """

    def __init__(
        self,
        every: Every,
        *,
        write: Callable[[Counters], object],
        try_out: Callable[[DryRunState], None],
        desk: CommandDesk,
        output: SideOutput,
    ) -> None:
        """`write` writes a backup; `try_out` starts one of the dry run and discards it; `output` warns of a failure."""
        self._every = every
        self._write = write
        self._try_out = try_out
        self._desk = desk
        self._output = output

    def is_due(self, before: Counters, now: Counters) -> bool:
        """Return whether it is due or requested."""
        return self._desk.has(BackupNow) or self._every.is_due(before.moment, now.moment)

    def after_step(self, view: StepView) -> None:
        """Write a backup if it is due or requested."""
        if self.is_due(view.before, view.now):
            if self._desk.take(BackupNow):
                self._output.is_failing = False  # a requested backup that fails is reported each time
            with self._output.warn_on_failure():
                self._write(view.now)

    def dry_run_checks(self, state: DryRunState) -> list[DryRunCheck]:
        """Return the check of writing a backup, which every run may need: a stop writes one."""
        return [DryRunCheck("writing a backup", "Close other programs.", partial(self._try_out, state))]
