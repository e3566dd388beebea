"""Presets: the built-in ones of `training_presets/<family>/#<name>.json`, and the user's own.

A built-in preset states only what differs from the defaults, and says in `general.notes` what it is for. Users'
presets live in the platform's config folder, so that an update of the program never touches them; they never begin
with '#', the mark of the built-in ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from modules.config.codec import Loaded, export_file, load_file, packed
from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT, safe_name, user_presets_dir
from modules.system.problem import Problem

BUILT_IN_DIR = PROGRAM_ROOT / "training_presets"


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset that can be loaded: its name as shown ('#' marks a built-in one), its group and its file."""

    name: str
    group: str
    path: Path

    @property
    def is_built_in(self) -> bool:
        """Whether it came with the program and may not be overwritten."""
        return self.name.startswith("#")

    def load(self, *, over: Config | None = None) -> Loaded:
        """Read the preset, over another config if one is given; like every load, this never raises on content."""
        return load_file(self.path, over=over)


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a folder of presets: those that are the user's own now, and what was found about each file."""

    presets: tuple[Preset, ...]
    problems: tuple[Problem, ...]


def list_presets(*, user_dir: Path | None = None) -> list[Preset]:
    """Return all presets, the built-in ones by family first, then the user's, each by name, 8 GB before 12 GB.

    What is no file with the ending of a config is passed over, and so is a folder that cannot be read.
    """
    built_in = [Preset(file.stem, file.parent.name, file) for file in _files(BUILT_IN_DIR, "*/#*.json")]
    own = [Preset(file.stem, "yours", file) for file in _own_files(user_dir or user_presets_dir())]
    return built_in + own


def save_preset(config: Config, name: str, *, user_dir: Path | None = None) -> Preset:
    """Save a config as the user's own preset of that name and return it; replaces one of the same name.

    A preset is one file: concepts and samples that have files of their own are written into it.

    Raises DarkroomError where nothing is left of the name once '#' and odd characters are taken out.
    """
    stem = safe_name(name.lstrip("# "))
    if not any(c.isalnum() for c in name):
        raise DarkroomError("A preset needs a name.", advice="Type one; '#' at its beginning marks built-in ones.")
    path = (user_dir or user_presets_dir()) / f"{stem}.json"
    export_file(config, path)
    return Preset(stem, "yours", path)


def import_presets(folder: Path, *, user_dir: Path | None = None) -> Imported:
    """Make every preset of a folder (OneTrainer's `training_presets`, say) one of the user's own, under its name.

    Built-in ones ('#') are passed over. A preset that the user has already stays as it is: an equal one is not written
    again, another one gets a number behind its name. Never raises on content; what went wrong with a file is told, and
    the others are taken. Raises OSError where the user's folder cannot be written.
    """
    target = user_dir or user_presets_dir()
    presets: list[Preset] = []
    problems: list[Problem] = []
    for file in _own_files(folder):
        loaded = load_file(file)
        if any(p.severity == "error" and not p.path for p in loaded.problems):
            problems += (Problem("", f"{file.name} was left out. {p.message}", "warning") for p in loaded.problems)
            continue
        preset, message = _keep(packed(loaded.config), file.stem, target)
        presets.append(preset)
        problems.append(Problem("", f"{file.stem}: {message}", "info"))
        problems += (Problem("", f"{file.stem}: {p}", p.severity) for p in loaded.problems)
    return Imported(tuple(presets), tuple(problems))


def _keep(config: Config, name: str, target: Path) -> tuple[Preset, str]:
    """Write a preset unless there is an equal one; return it, and what was done in words."""
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


def _own_files(folder: Path) -> Iterator[Path]:
    return (file for file in _files(folder, "*.json") if file.stem[0] not in "#.")


def _files(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted((file for file in folder.glob(pattern) if file.is_file()), key=_reading_order)
    except OSError:
        return []


def _reading_order(file: Path) -> list[tuple[str, float]]:
    """Return what files are sorted by: their names with the numbers in them by their size, after their folder's."""
    pieces = re.findall(r"([^\d]*)(\d*)", f"{file.parent.name}/{file.stem}")
    return [(text, float(digits or -1)) for text, digits in pieces]
