"""Which fields a form shows: those that matter now, at the level the user wants, and those that were changed. No Tk."""

from __future__ import annotations

from typing import Any

from modules.config.edit import get_path
from modules.config.field import FieldRecord
from modules.config.schema import Config
from modules.config.walk import is_relevant


def is_shown(config: Config, record: FieldRecord, *, show_advanced: bool) -> bool:
    """Return whether a form shows the field now.

    An advanced field that is not at its default is shown even to who wants the basic ones: nothing that decides the
    run is out of sight. What the engine does not do yet is shown only where a file asks for it.
    """
    if not is_relevant(config, record):
        return False
    if record.setting.not_yet:
        return not is_default(config, record)
    return show_advanced or record.setting.level == "basic" or not is_default(config, record)


def is_default(config: Config, record: FieldRecord) -> bool:
    """Return whether the field has the value it has when nothing is said of it."""
    return bool(_value(config, record.path) == record.default)


def _value(config: Config, path: str) -> Any:
    try:
        return get_path(config, path)
    except KeyError:
        return None
