"""The states of a run that a fork can start from, and the settings of a fork."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from modules.config.codec import load_file
from modules.config.records import record_at
from modules.config.schema import Config
from modules.settings.edit import replace_value
from modules.system.errors import DarkroomError
from modules.system.paths import as_config_path, safe_name
from trainer.jobs.checkpoint_files import checkpoints_of
from trainer.run_folder.backup import list_backups
from trainer.run_folder.destination import PATH, stem_of, with_free_number, with_stem
from trainer.run_folder.fork import ForkSource
from trainer.run_folder.records import RunRecord, config_of

_START_FILES = {"adapter": "adapter.start_from", "full": "model.base_model"}
"""The setting that names the model to start from, by what is trained."""


@dataclass(frozen=True, slots=True)
class ForkChoices:
    """The states that forks of a run can start from, newest first; the validation losses by step; the proposed name."""

    sources: tuple[ForkSource, ...]
    losses: dict[int, float]
    name: str


def fork_choices(record: RunRecord) -> ForkChoices:
    """Read what forks of a run can start from: for a background thread.

    Its backups, and the models that it has saved, unless its settings have no place for a model to start from.
    """
    run, run_dir, config = record.title, record.run_dir, config_of(record.run_dir)
    try:
        checkpoints = checkpoints_of(run_dir) if config is not None and _start_setting(config) else []
    except DarkroomError:  # its result is not a model of its own
        checkpoints = []
    models = [ForkSource(run_dir, run, c.step, Path(c.path)) for c in checkpoints if c.path]
    backups = [ForkSource(run_dir, run, b.step, b.path, b) for b in list_backups(run_dir)]
    ordered = sorted([*backups, *models], key=lambda s: (-s.step, s.backup is None, s.path.name))
    losses = {c.step: c.loss for c in checkpoints if c.loss is not None and c.loss_step == c.step}
    return ForkChoices(tuple(ordered), losses, proposed_name(config) if config is not None else "")


def fork_config(source: ForkSource, name: str) -> Config:
    """Return the settings of a fork whose result has a name. Raises DarkroomError if the run's are gone."""
    loaded = load_file(source.path / "config.json").config if source.backup is not None else config_of(source.run_dir)
    if loaded is None:
        raise DarkroomError(f"The settings of {source.run} cannot be read.", advice="Choose a backup to start from.")
    if source.backup is None:
        loaded = replace_value(loaded, _start_setting(loaded), as_config_path(source.path))
    return with_name(loaded, name)


def _start_setting(config: Config) -> str:
    path = _START_FILES.get(config.training.trains, "")
    return path if path and record_at(config, path) is not None else ""


def proposed_name(config: Config) -> str:
    """Return the name of the result with the first number that is free: zog-2 for zog."""
    return stem_of(with_free_number(config).output.destination)


def with_name(config: Config, name: str) -> Config:
    """Return the config with another name of the result, in the same folder and of the same kind."""
    clean = safe_name(name) if name.strip() else proposed_name(config)
    return replace_value(config, PATH, with_stem(config.output.destination, clean))
