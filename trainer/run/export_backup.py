"""Exporting backups as models that other programs load, without resuming their run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from modules.config.codec import load_file
from modules.config.sampled_model import without_additions
from modules.data.dataset import Dataset
from modules.settings.edit import set_path
from trainer.export.exporter import SaveMoment
from trainer.preflight import check
from trainer.run.callbacks import exporter_of
from trainer.run.checkpoint import read_state, restore_fixed, weights_to_use
from trainer.run.machine import machine_of
from trainer.run.model import load_model
from trainer.run_folder.backup import BackupInfo, verify
from trainer.run_folder.run_dir import start_copy_in


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """An exported model: its file or folder, and its step and epoch."""

    path: Path
    step: int
    epoch: int


def export_backup(
    backup: BackupInfo, out: Path, *, now: datetime, report: Callable[[str], object] = str
) -> ExportedModel:
    """Write the model of a backup with the weights that its run saves, and in its format (see `export_backups`).

    Raises DarkroomError for a damaged backup, and OSError.
    """
    verify(backup)
    return export_backups([(backup, out)], now=now, report=report)[0]


def export_backups(
    wanted: Sequence[tuple[BackupInfo, Path]], *, now: datetime, report: Callable[[str], object] = str
) -> list[ExportedModel]:
    """Write the models of backups of one run, each to its path. The model is loaded once for backups of one config.

    The backups must be whole (`verify`).

    It is loaded on the CPU: a card may be in use by another run. The metadata have no facts about images that are no
    longer there. `report(what)` is called before each part of the work, and may raise to stop it. Raises DarkroomError
    for a base model that cannot be read, and OSError.
    """
    by_config: dict[str, list[tuple[BackupInfo, Path]]] = {}
    for backup, out in wanted:
        by_config.setdefault((backup.path / "config.json").read_text(encoding="utf-8"), []).append((backup, out))
    return [model for same in by_config.values() for model in _export(same, now, report)]


def _export(
    wanted: Sequence[tuple[BackupInfo, Path]], now: datetime, report: Callable[[str], object]
) -> Iterator[ExportedModel]:
    run_dir = wanted[0][0].run_dir
    config = load_file(wanted[0][0].path / "config.json").config
    for name in ("train_device", "temp_device"):
        config, _ = set_path(config, f"general.{name}", "cpu")
    machine = machine_of(config.general, config.training.precision)
    report("loading the model")
    model = load_model(without_additions(config), machine, None, start_copy=start_copy_in(run_dir))
    try:
        report("checking the images")
        datasets = check(config, run_dir=run_dir).datasets
        dataset = datasets.training if datasets is not None else Dataset((), (), 1)
        for backup, out in wanted:
            moment = read_state(backup.path).counters
            total_steps = moment.step if datasets is None else datasets.plans.total_steps(config.training.epochs)
            restore_fixed(backup.path, model.groups)
            exporter = exporter_of(config, run_dir, model, dataset, total_steps)
            values = weights_to_use(backup.path, model.groups, {})
            report("writing the model")
            exporter.save(out, values, SaveMoment(now, moment.step, moment.epoch))
            yield ExportedModel(out, moment.step, moment.epoch)
    finally:
        model.placement.close()
