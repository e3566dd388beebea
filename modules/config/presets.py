"""Presets: the built-in ones of `training_presets/<family>/#<name>.json`, and the user's own.

A built-in preset states only what differs from the defaults, and says in `general.notes` what it is for. Users'
presets live in the platform's config folder, so that an update of the program never touches them; they never begin
with '#', the mark of the built-in ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from modules.config.codec import Loaded, load_file, save_file
from modules.config.schema import Config
from modules.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT, safe_name, user_presets_dir

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

    def load(self) -> Loaded:
        """Read the preset; like every load, this never raises on content."""
        return load_file(self.path)


def list_presets(*, user_dir: Path | None = None) -> list[Preset]:
    """Return all presets, the built-in ones by family first, then the user's, each by name."""
    built_in = [Preset(file.stem, file.parent.name, file) for file in sorted(BUILT_IN_DIR.glob("*/#*.json"))]
    folder = user_dir or user_presets_dir()
    own = [Preset(file.stem, "yours", file) for file in sorted(folder.glob("*.json")) if file.stem[0] not in "#."]
    return built_in + own


def save_preset(config: Config, name: str, *, user_dir: Path | None = None) -> Preset:
    """Save a config as the user's own preset of that name and return it; replaces one of the same name.

    Raises DarkroomError where nothing is left of the name once '#' and odd characters are taken out.
    """
    stem = safe_name(name.lstrip("# "))
    if not any(c.isalnum() for c in name):
        raise DarkroomError("A preset needs a name.", advice="Type one; '#' at its beginning marks built-in ones.")
    path = (user_dir or user_presets_dir()) / f"{stem}.json"
    save_file(config, path)
    return Preset(stem, "yours", path)
