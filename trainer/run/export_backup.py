"""Exporting a backup as a model that other programs load, without resuming its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from modules.config.codec import load_file
from modules.config.schema import Config
from modules.data.dataset import Dataset
from modules.optim.registry import optimizer_spec
from modules.settings.edit import set_path
from modules.system.errors import DarkroomError
from trainer.preflight import check
from trainer.run.checkpoint import read_state
from trainer.run.machine import machine_of
from trainer.run.model import load_model
from trainer.run.watchers import exporter_of
from trainer.run_folder.backup import BackupInfo, verify
from trainer.run_folder.shards import Kind, has_averages, read_whole
from trainer.run_folder.start_copy import start_copy_in


@dataclass(frozen=True, slots=True)
class Exported:
    """What was exported: the file or folder, and the step and epoch of the model."""

    path: Path
    step: int
    epoch: int


def export_backup(backup: BackupInfo, out: Path, *, now: datetime, report: Callable[[str], object] = str) -> Exported:
    """Write the model of a backup, with its EMA weights if there are any, in the format that its run saves.

    The model is loaded on the CPU: a card may be in use by another run. The metadata have no facts about images that
    are no longer there. `report(what)` is called before each part of the work, and may raise to stop it. Raises
    DarkroomError for a damaged backup, or if its optimizer would be needed, and OSError.
    """
    verify(backup)
    config = load_file(backup.path / "config.json").config
    for name in ("train_device", "temp_device"):
        config, _ = set_path(config, f"general.{name}", "cpu")
    saved = read_state(backup.path)
    machine = machine_of(config.general, config.training.precision)
    report("loading the model")
    model = load_model(config, machine, None, start_copy=start_copy_in(backup.run_dir))
    try:
        report("checking the images")
        datasets = check(config, run_dir=backup.run_dir).datasets
        dataset = datasets.training if datasets is not None else Dataset((), (), 1)
        total_steps = saved.counters.step if datasets is None else datasets.plans.total_steps(config.training.epochs)
        exporter = exporter_of(config, backup.run_dir, model, dataset, total_steps)
        values = read_whole(backup.path, _weights_kind(backup, config))
        report("writing the model")
        exporter.save(out, values, now=now, step=saved.counters.step, epoch=saved.counters.epoch)
    finally:
        model.placement.close()
    return Exported(out, saved.counters.step, saved.counters.epoch)


def _weights_kind(backup: BackupInfo, config: Config) -> Kind:
    """Return which weights to save. Raises DarkroomError where only the optimizer could compute them."""
    if has_averages(backup.path):
        return "ema"
    spec = optimizer_spec(config.training.optimizer)
    if spec.has_evaluation_mode(config.training.optimizer):
        raise DarkroomError(
            f"The weights in a backup of {spec.label} are not those to use: it averages them itself.",
            advice="Resume the run from this backup, and save the model there.",
        )
    return "weights"
