"""Saves on the way: files that other programs can use, to compare and choose from."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from pathlib import Path

import torch

from modules.families.kinds.programs import who_loads_file
from modules.settings.every import Every
from modules.system.atomic import atomic_file, atomic_folder
from trainer.callbacks.dry_run import enough, without_a_trace
from trainer.commands import CommandDesk, SaveNow
from trainer.events import Event, ModelSaved, PhaseChanged
from trainer.export.adapter import Exporter
from trainer.step.callback import DryRunCheck, DryRunState, StepView
from trainer.step.counters import Counters


class SavingCallback:
    """Writes `<run>/save/<name>-step-00000010.safetensors` (or a folder of that name) when it is due or asked for."""

    def __init__(
        self,
        every: Every,
        *,
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
        """`destination` is the place of the result, `folder` that of saves on the way.

        `values()` has the weights to save, by full parameter name, while it is entered: averaged ones where they are
        kept.
        """
        self._every = every
        self._destination = destination
        self._folder = folder
        self._name = name
        self._format_name = format_name
        self._exporter = exporter
        self._values = values
        self._now = now
        self._desk = desk
        self._emit = emit

    def after_step(self, view: StepView) -> None:
        """Save if it is due or asked for."""
        is_due = self._every.is_due(view.before.moment, view.now.moment)
        if self._desk.take(SaveNow) or is_due:
            self.save_on_the_way(view.now)

    def save_on_the_way(self, counters: Counters) -> Path:
        """Write a save under the name of its step and return its path."""
        path = self._path(counters)
        self.save(path, counters, is_final=False)
        return path

    @property
    def best_path(self) -> Path:
        """Where the best model by validation is kept."""
        return self._folder / f"{self._name}-best{self._exporter.suffix}"

    def save_best(self, counters: Counters) -> None:
        """Keep the model as the best, in place of the one before."""
        self.save(self.best_path, counters, is_final=False)

    def dry_run_checks(self, small: DryRunState) -> list[DryRunCheck]:
        """Return the trials of a save in both places: the result's, and where a stop or a save on the way puts one."""
        places = {"saving on the way": self._path(small.counters), "saving the result": self._destination}
        return [
            DryRunCheck(what, "Close other programs.", partial(self._begin, path, small.counters))
            for what, path in places.items()
        ]

    def _begin(self, path: Path, counters: Counters) -> None:
        """Begin to write the model to a path and give it up after the first tensor; what is there stands."""
        facts = {"step": counters.step, "epoch": counters.epoch}
        with without_a_trace(path.parent), self._values() as values:
            self._exporter.save(path, values, now=self._now(), on_written=enough, **facts)

    def _path(self, counters: Counters) -> Path:
        return self._folder / f"{self._name}-step-{counters.step:08d}{self._exporter.suffix}"

    def save(self, path: Path, counters: Counters, *, is_final: bool) -> None:
        """Write the model to a path and tell it. Raises DarkroomError where a weight is not finite, OSError."""
        self._emit(PhaseChanged("saving", path.name))
        with self._values() as values:
            self._exporter.save(path, values, now=self._now(), step=counters.step, epoch=counters.epoch)
        self._tell(path, counters.step, is_final=is_final)

    def copy_best(self, path: Path, step: int) -> None:
        """Write the best model, which was kept after a step, to the result's path and tell it. Raises OSError."""
        self._emit(PhaseChanged("saving", path.name))
        copy_model(self.best_path, path)
        self._tell(path, step, is_final=True)

    def _tell(self, path: Path, step: int, *, is_final: bool) -> None:
        _, loads = who_loads_file(path)
        programs = tuple(x.program for x in loads if x.complete)
        self._emit(ModelSaved(step, str(path), self._format_name, is_final, programs))


def copy_model(source: Path, destination: Path) -> None:
    """Copy a saved model, a file or a folder, atomically. Raises OSError, and leaves what was there."""
    if not source.is_dir():
        with atomic_file(destination) as temporary:
            shutil.copyfile(source, temporary)
        return
    with atomic_folder(destination) as temporary:
        shutil.copytree(source, temporary, dirs_exist_ok=True)
