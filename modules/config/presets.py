"""Presets: the built-in ones of `training_presets/<family>/#<name>.json`, and the user's own.

A built-in preset contains only what differs from the defaults, and describes its purpose in `general.notes`. Users'
presets are in the platform's config folder, so that an update of the program never touches them; their names never
begin with '#', which marks the built-in ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from modules.config.codec import LoadedConfig, export_file, load_file
from modules.config.schema import Config
from modules.families.registry import FAMILIES, newest_families
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT, safe_name, user_presets_dir

BUILT_IN_DIR = PROGRAM_ROOT / "training_presets"
DEMO = "#demo"
"""The preset of the demo; the names of its variants begin with this one."""
MAX_OFFERED = 3
"""The most presets that are offered for a machine; the window keeps room for them while they are looked for."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset: its displayed name ('#' marks a built-in one), its group and its file."""

    name: str
    group: str
    path: Path

    @property
    def card_gb(self) -> int:
        """The gigabytes of the card that its name states, or the description of a built-in one; 0 if none does."""
        stated = re.search(r"\b(\d+) ?GB\b", self.name)
        if stated is None:
            return _described_gb(self.path) if self.is_built_in else 0
        return int(stated[1])

    @property
    def is_built_in(self) -> bool:
        """Whether it belongs to the program and must not be overwritten."""
        return self.name.startswith("#")

    @property
    def is_demo(self) -> bool:
        """Whether it trains one of the demo's models, which come with the program."""
        return is_demo_name(self.name)

    def load(self, *, over: Config | None = None) -> LoadedConfig:
        """Read the preset; missing settings come from `over`. Like every load, this never raises on content."""
        return load_file(self.path, over=over)


@cache
def _described_gb(path: Path) -> int:
    """Return the gigabytes of the card that a built-in preset is described for; 0 if it cannot be read or has none."""
    try:
        described = re.search(r"\bGPU with (\d+) GB\b", path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
    return int(described[1]) if described else 0


def is_demo_name(name: str) -> bool:
    """Return whether the preset of this name trains one of the demo's models."""
    return name == DEMO or name.startswith(f"{DEMO} ")


def list_presets(*, user_dir: Path | None = None) -> list[Preset]:
    """Return all presets: the built-in ones in the order of the families, then the user's.

    Those of a family are in natural order (8 GB before 12 GB). Files without the suffix of a config are skipped, and so
    is a folder that cannot be read.
    """
    users = (Preset(file.stem, "yours", file) for file in user_files(user_dir or user_presets_dir()))
    return [*_built_in_presets(BUILT_IN_DIR), *users]


@cache
def _built_in_presets(folder: Path) -> tuple[Preset, ...]:
    """Return the presets that belong to the program; they stay the same while it runs."""
    presets = (Preset(file.stem, file.parent.name, file) for file in _files(folder, "*/#*.json"))
    ranks = {family: rank for rank, family in enumerate(FAMILIES)}
    return tuple(sorted(presets, key=lambda preset: ranks.get(preset.group, len(ranks))))


def readable_configs(presets: Iterable[Preset]) -> dict[Preset, Config]:
    """Return the configs of the presets that can be read."""
    loaded = {preset: preset.load() for preset in presets}
    return {p: r.config for p, r in loaded.items() if not any(q.severity == "error" for q in r.problems)}


def preset_for(family: str, like: Config, card_gb: int, configs: Mapping[Preset, Config]) -> Preset | None:
    """Return the built-in preset of a family for a run like another one, on a card with this memory.

    Of those that the card has enough memory for, the best has the same training target, model variant and method (or
    the default one), and then states the most memory. For an unknown card (0), or if it has too little for all, it
    states the least.
    """
    usual = Config().training.method.name

    def rank(preset: Preset) -> tuple[bool, bool, bool, int, int]:
        config, fits = configs[preset], preset.card_gb <= card_gb
        method = config.training.method.name
        return (
            fits,
            config.training.trains == like.training.trains,
            config.model.variant == like.model.variant,
            2 if method == like.training.method.name else int(method == usual),
            preset.card_gb if fits else -preset.card_gb,
        )

    return max((p for p in configs if p.group == family and _is_offered(p)), key=rank, default=None)


def families_for_card(configs: Mapping[Preset, Config], card_gb: int) -> tuple[str, ...]:
    """Return the families of the built-in presets that a card has enough memory for, the newest first.

    Those that fit only with most of the layers in the computer's memory, which is slow, are the last. A preset that
    states no card is for any. The demo's models are of no family that a user would choose.
    """
    fitting = [p for p in configs if _is_offered(p) and p.card_gb <= card_gb]
    fast = {p.group for p in fitting if configs[p].part(configs[p].family.denoiser.name).offload_fraction < 0.5}
    groups = {p.group for p in fitting}
    return tuple(sorted((name for name in newest_families() if name in groups), key=lambda name: name not in fast))


def _is_offered(preset: Preset) -> bool:
    return preset.is_built_in and not preset.is_demo


def save_preset(config: Config, name: str, *, user_dir: Path | None = None) -> Preset:
    """Save a config as a preset of the user and return it; replaces one of the same name.

    A preset is one file: concepts and samples in separate files are written into it.

    Raises DarkroomError if the name has no letters or digits.
    """
    stem = safe_name(name.lstrip("# "))
    if not any(c.isalnum() for c in name):
        raise DarkroomError("A preset needs a name.", advice="Type one. A '#' at the beginning marks built-in presets.")
    path = (user_dir or user_presets_dir()) / f"{stem}.json"
    export_file(config, path)
    return Preset(stem, "yours", path)


def user_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that may be presets of a user."""
    return (file for file in _files(folder, "*.json") if file.stem[0] not in "#.")


def _files(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted((file for file in folder.glob(pattern) if file.is_file()), key=_reading_order)
    except OSError:
        return []


def _reading_order(file: Path) -> list[tuple[str, float]]:
    """Return the sort key of a file: its folder and name, with numbers in them compared by value."""
    pieces = re.findall(r"([^\d]*)(\d*)", f"{file.parent.name}/{file.stem}")
    return [(text, float(digits or -1)) for text, digits in pieces]
