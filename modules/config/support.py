"""Settings that the engine does not support yet: reported before a run, never silently ignored."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.settings.edit import get_path
from modules.settings.field import FieldRecord
from modules.settings.walk import live_records
from modules.system.problem import Problem, shown


def unsupported(config: Config) -> Iterator[Problem]:
    """Yield an error for each unsupported setting that would change the training, and a warning for each that merely
    has no effect.
    """
    for record in live_records(config):
        value = get_path(config, record.path)
        name = str(getattr(value, "name", value)) if record.kind in ("section", "choice") else ""
        if name in record.setting.not_yet_choices:
            yield _refused_choice(record, name)
        elif record.setting.not_yet and value != record.default:
            yield _refused(record, value) if record.setting.not_yet == "refused" else _without_effect(record, value)


def _refused_choice(record: FieldRecord, name: str) -> Problem:
    done = [label for key, label in record.choices.items() if key not in record.setting.not_yet_choices]
    label = record.choices.get(name, name)
    return Problem(
        record.path,
        f"{record.label}: {label} is not supported yet.",
        advice=f"Choose {', '.join(done[:-1])} or {done[-1]}." if len(done) > 1 else f"Choose {done[0]}.",
    )


def _refused(record: FieldRecord, value: object) -> Problem:
    return Problem(
        record.path,
        f"{record.label}: {_plain(record, value)} is not supported yet.",
        advice=f"Set it back to {_plain(record, record.default)}.",
    )


def _without_effect(record: FieldRecord, value: object) -> Problem:
    return Problem(
        record.path,
        f"{record.label}: {_plain(record, value)} has no effect yet.",
        "warning",
        f"The training is the same without it. Set it back to {_plain(record, record.default)} to remove this warning.",
    )


def _plain(record: FieldRecord, value: object) -> str:
    """Return a value as the window displays it."""
    match value:
        case bool():
            return "on" if value else "off"
        case None | "" | ():
            return record.setting.empty_means or "empty"
        case str():
            return record.choices.get(value, shown(value))
        case tuple():
            return f"a list of {len(value)}"
        case float():
            return f"{value:g}"
        case _:
            return str(value)
