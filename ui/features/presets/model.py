"""Presets in groups for menus, the rows of the lists of presets, and how two presets differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from modules.config.presets import DEMO, Preset
from modules.config.records import record_at
from modules.config.schema import Config
from modules.families.registry import FAMILIES, family_labels, newest_families
from ui.forms.changes import changes

USER_KIND = "Yours"
_USER_TITLE, _DEMO_TITLE = "Your presets", "Demo"
_METHODS = "Rewards and preferences"
_KINDS = ("adapter", "full", "embedding", "vae", _METHODS)  # as the menus list them


@dataclass(frozen=True, slots=True)
class PresetGroup:
    """Presets of a submenu: its title, and the presets under their headings."""

    title: str
    parts: tuple[tuple[str, tuple[Preset, ...]], ...]

    @property
    def presets(self) -> tuple[Preset, ...]:
        """All presets of the group."""
        return tuple(preset for _, presets in self.parts for preset in presets)


def preset_groups(presets: Sequence[Preset]) -> tuple[PresetGroup, ...]:
    """Return the user's presets, the demo, and each family's: plain LoRAs first, training methods last."""
    user_presets = tuple(p for p in presets if not p.is_built_in)
    demo = tuple(sorted((p for p in presets if p.is_demo), key=lambda p: (p.name != DEMO, p.name.casefold())))
    groups = [PresetGroup(_USER_TITLE, (("", user_presets),)), PresetGroup(_DEMO_TITLE, (("", demo),))]
    built_in = [p for p in presets if p.is_built_in and not p.is_demo]
    labels = family_labels()
    present = {p.group for p in built_in}
    for family in (*(name for name in labels if name in present), *sorted(present - labels.keys())):
        of_family = [p for p in built_in if p.group == family]
        kinds = {kind: tuple(p for p in of_family if _kind(p.path) == kind) for kind in _KINDS}
        parts = tuple((_kind_label(kind), kind_presets) for kind, kind_presets in kinds.items() if kind_presets)
        groups.append(PresetGroup(labels.get(family, family), parts))
    return tuple(group for group in groups if group.presets)


@cache
def _kind(path: Path) -> str:
    """Return the training target of a built-in preset, or that it uses another method; an unreadable one is a LoRA.

    These files stay the same while the program runs, and a menu has 150 of them.
    """
    try:
        training = json.loads(path.read_text(encoding="utf-8")).get("training", {})
        method, trains = training.get("method", {}), training.get("trains", "")
        name = method.get("name", "") if isinstance(method, dict) else method
    except (OSError, ValueError, AttributeError):
        return _KINDS[0]
    default = Config().training
    if name not in ("", default.method.name):
        return _METHODS
    return trains if trains in _KINDS else default.trains


def _kind_of(config: Config) -> str:
    """Return the training target of a config, or that it uses another method than the default one."""
    is_plain = config.training.method.name == Config().training.method.name
    return config.training.trains if is_plain else _METHODS


def _kind_label(kind: str) -> str:
    return _label(Config(), "training.trains", kind)


@dataclass(frozen=True, slots=True)
class PresetRow:
    """A preset as it is listed. `memory` is the card that its name states; `problem` is why it cannot be read."""

    preset: Preset
    config: Config | None
    family: str = ""
    trains: str = ""
    memory: str = ""
    notes: str = ""
    problem: str = ""

    @property
    def group(self) -> str:
        """The title that it is listed under: its family, the demo, or the user's presets."""
        if not self.preset.is_built_in:
            return _USER_TITLE
        return _DEMO_TITLE if self.preset.is_demo else self.family

    @property
    def card(self) -> str:
        """The card that it is for, as it is listed."""
        return self.memory or ("none needed" if self.preset.is_demo else "")

    @property
    def kind(self) -> tuple[str, str]:
        """Its family, and its training target or that it uses another method than the default one."""
        return self.family, _kind_of(self.config) if self.config is not None else _KINDS[0]

    @property
    def cells(self) -> tuple[str, ...]:
        """The columns after the name."""
        kind = "Built-in" if self.preset.is_built_in else USER_KIND
        return kind, self.family, self.trains, self.card, self.problem or first_line(self.notes)


def preset_rows(presets: Sequence[Preset]) -> list[PresetRow]:
    """Read the presets: for a background thread."""
    return [_row(preset) for preset in presets]


def difference_rows(one: PresetRow, other: PresetRow) -> list[tuple[str, str, str]]:
    """Return the settings in which two presets differ: the setting, its value in the first, and in the second."""
    if one.config is None or other.config is None:
        return []
    return [(c.place, c.before, c.now) for c in changes(other.config, one.config)]


def find_presets(rows: Sequence[PresetRow], text: str) -> list[PresetRow]:
    """Return the rows that contain every word of a text, in any column."""
    terms = text.casefold().split()
    return [r for r in rows if all(w in " ".join((r.preset.name, *r.cells, r.notes)).casefold() for w in terms)]


def for_card(rows: Sequence[PresetRow], card_gb: int) -> list[PresetRow]:
    """Return the rows in the order in which they suit a card: made for its memory, for any card, for a larger one.

    Of each family, training target and method the presets that state the most memory it has are made for it: plain
    LoRAs first, and of these the newest families. Without a card (0) the order stays.
    """
    families = [FAMILIES[name].label for name in newest_families()]
    best: dict[tuple[str, str], int] = {}
    for row in rows:
        if 0 < row.preset.card_gb <= card_gb:
            best[row.kind] = max(best.get(row.kind, 0), row.preset.card_gb)

    def rank(row: PresetRow) -> tuple[int, int, int]:
        is_best = 0 < row.preset.card_gb == best.get(row.kind)
        if is_best and row.family in families:
            return 0, _KINDS.index(row.kind[1]), families.index(row.family)
        return 2 if needs_larger_card(row, card_gb) else 1, 0, 0

    return sorted(rows, key=rank) if card_gb else list(rows)


def by_model(rows: Sequence[PresetRow]) -> list[PresetRow]:
    """Return the rows grouped by family and otherwise in their order; the user's presets come first."""
    groups = list(dict.fromkeys(row.group for row in rows))
    own_first = sorted(groups, key=lambda group: group != _USER_TITLE)
    return [row for group in own_first for row in rows if row.group == group]


def needs_larger_card(row: PresetRow, card_gb: int) -> bool:
    """Return whether a preset states more memory than a card has; False without a card (0)."""
    return 0 < card_gb < row.preset.card_gb


def first_line(text: str) -> str:
    """Return the first line of a text."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _row(preset: Preset) -> PresetRow:
    loaded = preset.load()
    unreadable = next((p.message for p in loaded.problems if p.severity == "error" and not p.path), "")
    if unreadable:
        return PresetRow(preset, None, problem=unreadable)
    config = loaded.config
    return PresetRow(
        preset,
        config,
        family=config.family.label,
        trains=_label(config, "training.trains", config.training.trains),
        memory=f"{preset.card_gb} GB" if preset.card_gb else "",
        notes=config.general.notes,
    )


def _label(config: Config, path: str, value: str) -> str:
    record = record_at(config, path)
    return record.choices.get(value, value) if record is not None else value
