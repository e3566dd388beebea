"""Managing the user's own presets: rename, duplicate, describe, and delete into a trash folder from which they return.

Built-in presets are never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path

from modules.config.codec import export_file
from modules.config.presets import Preset, save_preset
from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.paths import safe_name, user_presets_dir
from modules.system.problem import errors_in

TRASH = ".trash"


@dataclass(frozen=True, slots=True)
class Trashed:
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


def delete_preset(preset: Preset) -> Trashed:
    """Move a preset of the user into the trash folder beside it. Raises OSError."""
    _refuse_built_in(preset)
    trash = preset.path.parent / TRASH
    trash.mkdir(exist_ok=True)
    names = (f"{preset.name}{f' {n}' if n > 1 else ''}.json" for n in count(1))
    kept = next(trash / name for name in names if not (trash / name).exists())
    preset.path.rename(kept)
    return Trashed(preset, kept)


def restore_preset(trashed: Trashed) -> Preset:
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
