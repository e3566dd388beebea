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
from itertools import count
from pathlib import Path

from modules.config.codec import LoadedConfig, export_file, load_file, pack_lists
from modules.config.schema import Config
from modules.families.registry import FAMILIES, newest_families
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT, safe_name, user_presets_dir
from modules.system.problem import Problem, errors_in

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


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of an import: the presets that now belong to the user, and the problems found in each file."""

    presets: tuple[Preset, ...]
    problems: tuple[Problem, ...]


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
    users = (Preset(file.stem, "yours", file) for file in _user_files(user_dir or user_presets_dir()))
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


def import_presets(folder: Path, *, user_dir: Path | None = None) -> ImportResult:
    """Import every preset of a folder, such as OneTrainer's `training_presets`, as a preset of the user.

    Built-in ones ('#') are skipped. Presets that the user already has are never changed: an identical one is not
    written again, a different one gets a number after its name. Never raises on content: files that cannot be imported
    are reported. Raises OSError if the user's folder cannot be written.
    """
    target = user_dir or user_presets_dir()
    presets: list[Preset] = []
    problems: list[Problem] = []
    for file in _user_files(folder):
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


def _user_files(folder: Path) -> Iterator[Path]:
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


# Managing the user's own presets: rename, duplicate, describe, and delete into a trash folder from which they return.
#
# Built-in presets are never changed.

TRASH = ".trash"


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
