"""Which fields a form shows: relevant ones at the chosen level, and changed ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.config.records import is_reachable, record_at
from modules.config.schema import Config
from modules.settings.edit import condition_path, is_relevant
from modules.settings.field import FieldRecord
from ui.forms.records import value_at

UNSUPPORTED, CHOOSE_ANOTHER = "Not supported yet.", "Not supported yet. Choose another."
NO_EFFECT = "Has no effect yet."
NOT_YET = "(not yet)"


def is_shown(config: Config, record: FieldRecord, *, show_advanced: bool) -> bool:
    """Return whether a form shows the field.

    An advanced field that is not at its default is always shown, so that nothing that affects the run is hidden.
    A field that is not supported yet is shown only if a file sets it, and a choice only if it has several options.
    """
    if not is_reachable(config, record):
        return False
    if record.setting.not_yet_choices and len(available_choices(record, name_of(value_at(config, record.path)))) == 1:
        return False
    if record.setting.not_yet:
        return not is_default(config, record)
    return show_advanced or record.setting.level == "basic" or not is_default(config, record)


def available_choices(record: FieldRecord, chosen: str) -> Mapping[str, str]:
    """Return the available choices or variants by name: the supported ones and the current one.

    An unsupported one that a file sets is marked; it disappears once another is chosen.
    """
    later = record.setting.not_yet_choices
    labels = {name: f"{label} {NOT_YET}" if name in later else label for name, label in record.choices.items()}
    return {name: label for name, label in labels.items() if name not in later or name == chosen}


def support_note(config: Config, record: FieldRecord) -> str:
    """Return a note for a field with an unsupported value; else an empty text."""
    if name_of(value_at(config, record.path)) in record.setting.not_yet_choices:
        return CHOOSE_ANOTHER
    if record.setting.not_yet and not is_default(config, record):
        return UNSUPPORTED if record.setting.not_yet == "refused" else NO_EFFECT
    return ""


def is_out_of_reach(config: Config, record: FieldRecord) -> bool:
    """Return whether the field cannot be used: it, or a field it depends on, is not supported yet."""
    if record.setting.not_yet and is_default(config, record):
        return True
    condition = record.setting.applies_when
    if condition is None or is_relevant(config, record):
        return False
    switch = record_at(config, condition_path(record, condition))
    if switch is None:
        return False
    needed = set(map(str, condition.is_any_of))
    needs_what_is_not_there = bool(needed) and needed <= switch.setting.not_yet_choices
    return needs_what_is_not_there or is_out_of_reach(config, switch)


def name_of(value: Any) -> str:
    """Return the name of a choice or a variant."""
    return str(getattr(value, "name", value))


def is_default(config: Config, record: FieldRecord) -> bool:
    """Return whether the field has its default value."""
    return bool(value_at(config, record.path) == record.default)
