"""The user's own presets: imported from a folder, renamed, duplicated, described, and deleted into a trash folder from
which they return. Built-in presets are never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path

from modules.config.codec import export_file, load_file, pack_lists
from modules.config.presets import Preset, save_preset, user_files
from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.paths import safe_name, user_presets_dir
from modules.system.problem import Problem, errors_in

TRASH = ".trash"


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of an import: the presets that now belong to the user, and the problems found in each file."""

    presets: tuple[Preset, ...]
    problems: tuple[Problem, ...]


def import_presets(folder: Path, *, user_dir: Path | None = None) -> ImportResult:
    """Import every preset of a folder, such as OneTrainer's `training_presets`, as a preset of the user.

    Built-in ones ('#') are skipped. Presets that the user already has are never changed: an identical one is not
    written again, a different one gets a number after its name. Never raises on content: files that cannot be imported
    are reported. Raises OSError if the user's folder cannot be written.
    """
    target = user_dir or user_presets_dir()
    presets: list[Preset] = []
    problems: list[Problem] = []
    for file in user_files(folder):
        loaded = load_file(file)
        if any(p.severity == "error" and not p.path for p in loaded.problems):
            problems += (Problem("", f"{file.name} was left out. {p.message}", "warning") for p in loaded.problems)
            continue
        preset, message = _keep(pack_lists(loaded.config), file.stem, target)
        presets.append(preset)
        problems.append(Problem("", f"{file.stem}: {message}", "info"))
        problems += (Problem("", f"{file.stem}: {p}", p.severity) for p in loaded.problems)
    return ImportResult(tuple(presets), tuple(problems))


def _keep(config: Config, name: str, target: Path) -> tuple[Preset, str]:
    """Write a preset unless an identical one exists; return it and a description of what was done."""
    wanted = safe_name(name) if any(c.isalnum() for c in name) else "preset"
    for number in count(1):
        stem = wanted if number == 1 else f"{wanted} {number}"
        path = target / f"{stem}.json"
        if not path.exists():
            words = "imported" if stem == name else f"imported as {stem}"
            return save_preset(config, stem, user_dir=target), f"{words}."
        if path.is_file() and load_file(path).config == config:
            return Preset(stem, "yours", path), "already among your presets."
    raise AssertionError("there is always another number")


@dataclass(frozen=True, slots=True)
class DeletedPreset:
    """A deleted preset: its file, and where it is kept."""

    preset: Preset
    kept: Path


def rename_preset(preset: Preset, name: str) -> Preset:
    """Rename a preset of the user and return it. Raises DarkroomError for a name that is empty or taken, or OSError."""
    _refuse_built_in(preset)
    path = preset.path.with_name(f"{_stem_of(name)}.json")
    if path == preset.path:
        return preset
    is_same_file = path.exists() and path.samefile(preset.path)  # only the case changes, on a disk that ignores it
    if path.exists() and not is_same_file:
        raise DarkroomError(f"A preset named {path.stem} already exists.", advice="Choose another name.")
    preset.path.rename(path)
    return Preset(path.stem, preset.group, path)


def duplicate_preset(preset: Preset, *, user_dir: Path | None = None) -> Preset:
    """Copy a preset, also a built-in one, to a new preset of the user. Raises DarkroomError if it cannot be read."""
    folder = user_dir or user_presets_dir()
    stems = (f"{safe_name(preset.name.lstrip('# '))} copy{f' {n}' if n > 1 else ''}" for n in count(1))
    stem = next(s for s in stems if not (folder / f"{s}.json").exists())
    return save_preset(_config_of(preset), stem, user_dir=user_dir)


def describe_preset(preset: Preset, text: str) -> None:
    """Replace the description of a preset of the user. Raises DarkroomError if it cannot be read, or OSError."""
    _refuse_built_in(preset)
    config = _config_of(preset)
    export_file(config.model_copy(update={"general": config.general.model_copy(update={"notes": text})}), preset.path)


def delete_preset(preset: Preset) -> DeletedPreset:
    """Move a preset of the user into the trash folder next to it. Raises OSError."""
    _refuse_built_in(preset)
    trash = preset.path.parent / TRASH
    trash.mkdir(exist_ok=True)
    names = (f"{preset.name}{f' {n}' if n > 1 else ''}.json" for n in count(1))
    kept = next(trash / name for name in names if not (trash / name).exists())
    preset.path.rename(kept)
    return DeletedPreset(preset, kept)


def restore_preset(trashed: DeletedPreset) -> Preset:
    """Move a deleted preset back; under another name if its own is taken by now. Raises OSError."""
    first = trashed.preset.path
    paths = (first.with_stem(f"{first.stem}{f' {n}' if n > 1 else ''}") for n in count(1))
    path = next(p for p in paths if not p.exists())
    trashed.kept.rename(path)
    return Preset(path.stem, trashed.preset.group, path)


def _config_of(preset: Preset) -> Config:
    loaded = preset.load()
    unreadable = [p for p in errors_in(list(loaded.problems)) if not p.path]
    if unreadable:
        raise DarkroomError(f"{preset.name} could not be read. {unreadable[0].message}", advice=unreadable[0].advice)
    return loaded.config


def _stem_of(name: str) -> str:
    if not any(c.isalnum() for c in name):
        raise DarkroomError("A preset needs a name.", advice="Type one with letters or digits.")
    return safe_name(name.lstrip("# "))


def _refuse_built_in(preset: Preset) -> None:
    if preset.is_built_in:
        raise DarkroomError(f"{preset.name} is a built-in preset.", advice="Duplicate it, and change the copy.")
