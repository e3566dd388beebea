"""Which fields a form shows: those that matter now, at the level the user wants, and those that were changed. No Tk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.config.schema import Config
from modules.settings.edit import get_path
from modules.settings.field import FieldRecord
from modules.settings.walk import condition_path, is_relevant
from ui.forms.records import record_at

NOT_YET = "(not yet)"


def is_shown(config: Config, record: FieldRecord, *, show_advanced: bool) -> bool:
    """Return whether a form shows the field now.

    An advanced field that is not at its default is shown even to who wants the basic ones: nothing that decides the
    run is out of sight. What the engine does not do yet is shown only where a file asks for it, and a choice
    only where there is one.
    """
    if not is_relevant(config, record):
        return False
    if record.setting.not_yet_choices and len(offered(record, name_of(_value(config, record.path)))) == 1:
        return False
    if record.setting.not_yet:
        return not is_default(config, record)
    return show_advanced or record.setting.level == "basic" or not is_default(config, record)


def offered(record: FieldRecord, chosen: str) -> Mapping[str, str]:
    """Return the choices, or the variants, to choose from, by name: those that can be had, and the present one.

    One that cannot be had yet, and that a file asks for, is marked; it goes as soon as another is chosen.
    """
    later = record.setting.not_yet_choices
    labels = {name: f"{label} {NOT_YET}" if name in later else label for name, label in record.choices.items()}
    return {name: label for name, label in labels.items() if name not in later or name == chosen}


def not_yet_words(config: Config, record: FieldRecord) -> str:
    """Return what is to be said of a field that asks for something the engine does not do yet; else nothing."""
    if name_of(_value(config, record.path)) in record.setting.not_yet_choices:
        return "Not supported yet: choose another."
    if record.setting.not_yet and not is_default(config, record):
        return "Not supported yet." if record.setting.not_yet == "refused" else "Without effect yet."
    return ""


def is_out_of_reach(config: Config, record: FieldRecord) -> bool:
    """Return whether nobody can use the field: the engine does nothing with it yet, or with what it hangs on."""
    if record.setting.not_yet and is_default(config, record):
        return True
    condition = record.setting.applies_when
    if condition is None or is_relevant(config, record):
        return False
    switch = record_at(config, condition_path(record, condition))
    if switch is None:
        return False
    needs_what_is_not_there = set(map(str, condition.is_any_of)) <= switch.setting.not_yet_choices
    return needs_what_is_not_there or is_out_of_reach(config, switch)


def name_of(value: Any) -> str:
    """Return the name by which a choice or a variant is chosen."""
    return str(getattr(value, "name", value))


def is_default(config: Config, record: FieldRecord) -> bool:
    """Return whether the field has the value it has when nothing is said of it."""
    return bool(_value(config, record.path) == record.default)


def _value(config: Config, path: str) -> Any:
    try:
        return get_path(config, path)
    except KeyError:
        return None
