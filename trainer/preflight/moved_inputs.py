"""Files and folders that a run reads and that have been moved or renamed since it started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from modules.config.codec import load_file
from modules.config.compare import fixed_on_resume
from modules.config.schema import Config
from modules.settings.edit import get_path, has_path, set_path
from modules.settings.field import FieldRecord
from modules.system.paths import from_root
from modules.system.problem import Problem
from trainer.preflight.model_files import is_repository, kind_of
from trainer.preflight.places import inputs_of_config
from trainer.preflight.read_files import digests_of_files, files_read_by, parts_not_in_base
from trainer.run_folder.backup import BackupInfo
from trainer.run_folder.differences import file_differences
from trainer.run_folder.recipe import Recipe, known_recipe

_BASE = "model.base_model"
_COPIED = ("adapter.start_from", "embeddings.")  # files that a run reads once and copies


def moved_inputs(of_run: Config, now: Config) -> Mapping[str, str]:
    """Return the new places of what a run reads, by the path of the setting.

    Empty unless everything that has to stay the same on resume is the same, apart from files and folders that no longer
    exist where the run had them, and do exist where the current settings have them.
    """
    moved = _new_places(of_run, now)
    return {} if moved and fixed_on_resume(_set_all(of_run, moved), now) else moved


def at_new_places(of_run: Config, now: Config) -> Config:
    """Return the config of a run with the current places of what has been moved since."""
    return _set_all(of_run, moved_inputs(of_run, now))


def with_moved_base(of_run: Config, now: Config) -> Config:
    """Return the config of a run with the current place of its base model, if that was moved.

    For a fork that starts from its weights: other settings may have changed.
    """
    return _set_all(of_run, _moved_base(of_run, now))


def problems_of_inputs(backup: BackupInfo, now: Config, *, only_weights: bool = False) -> Iterator[Problem]:
    """Yield what a run that starts from a backup reads at another place, an error if the files there are others; and
    warnings about files at the same place that have changed.

    Files are compared with the run's recipe, by samples of them. With `only_weights` it is a fork, and only the base
    model has to be the same.
    """
    of_run = load_file(backup.path / "config.json").config
    moved = _moved_base(of_run, now) if only_weights else moved_inputs(of_run, now)
    recipe = known_recipe(backup.run_dir)
    changed, known = _compare_files(recipe, now, only_weights=only_weights) if recipe is not None else ({}, set[str]())
    for path, place in moved.items():
        before = get_path(of_run, path)
        if path in changed:
            message = f"{place} is not what the run was started with: {changed[path]}."
            yield Problem(path, message, advice=f"Choose the place that {before} was moved to, or start a new run.")
        else:
            advice = "" if path in known else "Make sure that it is the same."
            message = f"The run was started with {before}, which is gone, and resumes with {place}."
            yield Problem(path, message, "warning", advice)
    for path in sorted(changed.keys() - moved.keys()):
        place = get_path(of_run, path) if has_path(of_run, path) and has_path(now, path) else ""
        if place and place == get_path(now, path) and kind_of(from_root(place)):
            message = f"{place} has changed since the run was started: {changed[path]}."
            yield Problem(path, message, "warning", "Put the files back, or start a new run, if this is not intended.")


def _compare_files(recipe: Recipe, now: Config, *, only_weights: bool) -> tuple[dict[str, str], set[str]]:
    """Return the changes in the files that a run reads, by setting, and the settings whose contents are known.

    Further files in a folder do not count, and neither do files of which the run has copies, nor those of parts that a
    fork reads from elsewhere.
    """
    left_out = tuple(f"{part}/" for part in parts_not_in_base(now))
    read = [
        f
        for f in recipe.files
        if not f.setting.startswith(_COPIED)
        and (f.setting == _BASE or not only_weights)
        and not (f.setting == _BASE and f.name.startswith(left_out))
    ]
    before = {(f.setting, f.name): f for f in read}
    num_before = Counter(f.setting for f in read)
    found = [f for f in files_read_by(now) if f.setting in num_before]
    num_found = Counter(f.setting for f in found)
    found = [
        f for f in found if (f.setting, f.name) in before or num_before[f.setting] == num_found[f.setting] == 1
    ]  # one file may have another name
    files = digests_of_files(now, found, reads=False)
    changed = file_differences(replace(recipe, files=tuple(read)), replace(recipe, files=files))
    unknown = {f.setting for f in (*read, *files) if not f.sample}
    return {d.path: d.text for d in reversed([*changed])}, num_before.keys() - unknown


def _moved_base(of_run: Config, now: Config) -> dict[str, str]:
    return {path: place for path, place in _new_places(of_run, now).items() if path == _BASE}


def _new_places(of_run: Config, now: Config) -> dict[str, str]:
    current = {path: value for _, path, value in inputs_of_config(now)}
    return {
        path: current[path]
        for record, path, value in inputs_of_config(of_run)
        if current.get(path, value) != value and _is_gone(record, value) and kind_of(from_root(current[path]))
    }


def _set_all(config: Config, places: Mapping[str, str]) -> Config:
    for path, place in places.items():
        config, _ = set_path(config, path, place)
    return config


def _is_gone(record: FieldRecord, value: str) -> bool:
    is_download = "://" in value or (record.setting.path_kind == "model" and is_repository(value))
    return not is_download and not kind_of(from_root(value))
