"""The rows of the preset manager, and the differences between two presets. No Tk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from modules.config.presets import Preset
from modules.config.schema import Config
from modules.families.registry import family_labels
from ui.changes import changes
from ui.forms.records import record_at

OWN = "Yours"


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
    def cells(self) -> tuple[str, ...]:
        """The columns after the name."""
        kind = "Built-in" if self.preset.is_built_in else OWN
        return kind, self.family, self.trains, self.memory, self.problem or first_line(self.notes)


def preset_rows(presets: Sequence[Preset]) -> list[PresetRow]:
    """Read the presets: for a background thread."""
    return [_row(preset) for preset in presets]


def compared_rows(one: PresetRow, other: PresetRow) -> list[tuple[str, str, str]]:
    """Return the settings in which two presets differ: the setting, its value in the first, and in the second."""
    if one.config is None or other.config is None:
        return []
    return [(c.place, c.before, c.now) for c in changes(other.config, one.config)]


def matching(rows: Sequence[PresetRow], text: str) -> list[PresetRow]:
    """Return the rows that contain every word of a text, in any column."""
    words = text.casefold().split()
    return [r for r in rows if all(w in " ".join((r.preset.name, *r.cells, r.notes)).casefold() for w in words)]


def first_line(text: str) -> str:
    """Return the first line of a text."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _row(preset: Preset) -> PresetRow:
    loaded = preset.load()
    unreadable = next((p.message for p in loaded.problems if p.severity == "error" and not p.path), "")
    if unreadable:
        return PresetRow(preset, None, problem=unreadable)
    config = loaded.config
    stated = re.search(r"\b(\d+) ?GB\b", preset.name)
    return PresetRow(
        preset,
        config,
        family=family_labels().get(config.model.family, config.model.family),
        trains=_label(config, "training.trains", config.training.trains),
        memory=f"{stated[1]} GB" if stated else "",
        notes=config.general.notes,
    )


def _label(config: Config, path: str, value: str) -> str:
    record = record_at(config, path)
    return record.choices.get(value, value) if record is not None else value
