"""Which fields a form shows: those that matter now, at the level the user wants, and those that were changed. No Tk."""

from __future__ import annotations

from typing import Any

from modules.config.edit import get_path
from modules.config.field import FieldRecord, When
from modules.config.schema import Config


def condition_path(record: FieldRecord, condition: When) -> str:
    """Return the full path of the field a condition looks at: a sibling's name, or with a dot a path of the config."""
    if "." in condition.path:
        return condition.path
    holder = record.path.rpartition(".")[0]
    return f"{holder}.{condition.path}" if holder else condition.path


def is_relevant(config: Config, record: FieldRecord) -> bool:
    """Return whether the field's condition holds; without one it always matters."""
    condition = record.setting.applies_when
    if condition is None:
        return True
    try:
        return condition.holds(get_path(config, condition_path(record, condition)))
    except KeyError:
        return True


def is_shown(config: Config, record: FieldRecord, *, show_advanced: bool) -> bool:
    """Return whether a form shows the field now.

    An advanced field that is not at its default is shown even to who wants the basic ones: nothing that decides the
    run is out of sight.
    """
    if not is_relevant(config, record):
        return False
    return show_advanced or record.setting.level == "basic" or not is_default(config, record)


def is_default(config: Config, record: FieldRecord) -> bool:
    """Return whether the field has the value it has when nothing is said of it."""
    return bool(_value(config, record.path) == record.default)


def _value(config: Config, path: str) -> Any:
    try:
        return get_path(config, path)
    except KeyError:
        return None
