"""Whether a setting applies with the others, and what it needs if not, in words: "needs Method: DDPO or GRPO"."""

from __future__ import annotations

from typing import Any

from modules.config.records import record_at
from modules.config.unused import why_unused
from modules.settings.field import FieldRecord, Section, When
from modules.settings.walk import condition_path, is_relevant

_MAX_NAMED = 3


def is_reachable(config: Section, record: FieldRecord) -> bool:
    """Return whether the field applies: its condition holds, and so do those of the fields it depends on, and the
    training target and method use it.
    """
    if not is_relevant(config, record) or why_unused(config, record.path):
        return False
    condition = record.setting.applies_when
    above = [record.path.rpartition(".")[0]]
    if condition is not None and condition.otherwise is None:
        above.append(condition_path(record, condition))
    others = [found for path in above if (found := record_at(config, path)) is not None]
    return all(is_reachable(config, other) for other in others)


def needs_words(config: Section, record: FieldRecord) -> str:
    """Return the conditions that a field needs in order to apply, or why it is not used; empty if it applies."""
    if why := why_unused(config, record.path):
        return f"not used: {why}"
    needs = _needs(config, record)
    return f"needs {', and '.join(dict.fromkeys(needs))}" if needs else ""


def variants_words(record: FieldRecord, names: tuple[str, ...]) -> str:
    """Return that a field needs one of some variants of a choice."""
    return f"needs {record.label}: {_listed([record.choices.get(name, name) for name in names])}"


def _needs(config: Section, record: FieldRecord) -> list[str]:
    condition = record.setting.applies_when
    needs = []
    if condition is not None and not is_relevant(config, record):
        needs.append(" or ".join(_words(config, record, one) for one in condition.alternatives))
    above = [record.path.rpartition(".")[0]]
    if condition is not None and condition.otherwise is None:
        above.append(condition_path(record, condition))
    for path in above:
        switch = record_at(config, path) if path else None
        if switch is not None:
            needs += _needs(config, switch)
    return needs


def _words(config: Section, record: FieldRecord, condition: When) -> str:
    switch = record_at(config, condition_path(record, condition))
    label = switch.label if switch is not None else condition.path
    if condition.is_set:
        return f"{label} to be set"
    return f"{label}: {_listed([_value_words(switch, value) for value in condition.is_any_of])}"


def _value_words(switch: FieldRecord | None, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return switch.choices.get(str(value), str(value)) if switch is not None else str(value)


def _listed(names: list[str]) -> str:
    shown = names[:_MAX_NAMED]
    rest = len(names) - len(shown)
    return " or ".join(shown) + (f" or {rest} more" if rest else "")
