"""Exporting a backup as a model that other programs load, without resuming its run."""

from __future__ import annotations

from collections.abc import Callable
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
    """Write the model of a backup with the weights that its run saves, and in its format.

    The model is loaded on the CPU: a card may be in use by another run. The metadata have no facts about images that
    are no longer there. `report(what)` is called before each part of the work, and may raise to stop it. Raises
    DarkroomError for a damaged backup, and OSError.
    """
    verify(backup)
    config = load_file(backup.path / "config.json").config
    for name in ("train_device", "temp_device"):
        config, _ = set_path(config, f"general.{name}", "cpu")
    saved = read_state(backup.path)
    machine = machine_of(config.general, config.training.precision)
    report("loading the model")
    model = load_model(without_additions(config), machine, None, start_copy=start_copy_in(backup.run_dir))
    try:
        restore_fixed(backup.path, model.groups)
        report("checking the images")
        datasets = check(config, run_dir=backup.run_dir).datasets
        dataset = datasets.training if datasets is not None else Dataset((), (), 1)
        total_steps = saved.counters.step if datasets is None else datasets.plans.total_steps(config.training.epochs)
        exporter = exporter_of(config, backup.run_dir, model, dataset, total_steps)
        values = weights_to_use(backup.path, model.groups, {})
        report("writing the model")
        exporter.save(out, values, SaveMoment(now, saved.counters.step, saved.counters.epoch))
    finally:
        model.placement.close()
    return ExportedModel(out, saved.counters.step, saved.counters.epoch)
