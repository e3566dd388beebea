"""Files and folders that a run reads and that have been moved or renamed since it started."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.compare import fixed_on_resume
from modules.config.schema import Config
from modules.settings.edit import set_path
from modules.settings.field import FieldRecord
from modules.system.paths import from_root
from trainer.preflight.model_files import is_repository, kind_of
from trainer.preflight.places import inputs_of_config


def moved_inputs(of_run: Config, now: Config) -> Mapping[str, str]:
    """Return the new places of what a run reads, by the path of the setting.

    Empty unless everything that has to stay the same on resume is the same, apart from files and folders that no longer
    exist where the run had them, and do exist where the current settings have them.
    """
    current = {path: value for _, path, value in inputs_of_config(now)}
    moved = {
        path: current[path]
        for record, path, value in inputs_of_config(of_run)
        if current.get(path, value) != value and _is_gone(record, value) and kind_of(from_root(current[path]))
    }
    return {} if moved and fixed_on_resume(_set_all(of_run, moved), now) else moved


def describe_move(before: str, now: str) -> tuple[str, str]:
    """Return the warning about an input that was moved, and an advice."""
    return (
        f"The run was started with {before}, which is gone, and resumes with {now}.",
        "Make sure that it is the same.",
    )


def at_new_places(of_run: Config, now: Config) -> Config:
    """Return the config of a run with the current places of what has been moved since."""
    return _set_all(of_run, moved_inputs(of_run, now))


def _set_all(config: Config, places: Mapping[str, str]) -> Config:
    for path, place in places.items():
        config, _ = set_path(config, path, place)
    return config


def _is_gone(record: FieldRecord, value: str) -> bool:
    is_download = "://" in value or (record.setting.path_kind == "model" and is_repository(value))
    return not is_download and not kind_of(from_root(value))
