"""Every setting as a document for people, written from the field records and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from pydantic import BaseModel

from modules.config.schema import Config
from modules.settings.every import Every
from modules.settings.field import FieldRecord, records_of

_HEAD = """# Settings

Every setting of a config, with the key it has in files and after `--set`. This page is written by
`python -m trainer schema --markdown` from the program's own declarations; a test keeps it up to date.

*advanced*: shown in the window with "Show advanced settings". *resume*: may be changed when a run is resumed.
*not yet*: files may hold it, and a run is refused (or warned of) where it is set.
"""
_COLUMNS = "| Setting | Key | Default | Allowed | What it does |\n|---|---|---|---|---|\n"


def settings_document() -> str:
    """Return the document, in Markdown."""
    return _HEAD + "".join(_sections())


def _sections() -> Iterator[str]:
    records = records_of(Config)
    for name, group in groupby(records, key=lambda r: r.path.partition(".")[0]):
        yield f"\n## {name.replace('_', ' ').capitalize()}\n"
        members = list(group)
        plain = [r for r in members if r.kind not in ("list", "map")]
        for title, rows in groupby(plain, key=lambda r: r.setting.group):
            yield (f"\n### {title}\n\n" if title else "\n") + _table(list(rows))
        for record in members:
            yield from _inside(record)


def _inside(record: FieldRecord) -> Iterator[str]:
    """Yield the fields of a record's variants, entries or parts."""
    if record.item is not None:
        entry = "<part>" if record.kind == "map" else "<number>"
        yield f"\n### {record.label}: `{record.path}.{entry}`\n\n{record.setting.help}\n\n"
        yield _table(records_of(record.item, f"{record.path}.{entry}"))
    for name, variant in record.variants.items():
        mark = ", not yet" if name in record.setting.not_yet_choices else ""
        fields = records_of(variant, record.path)
        yield f"\n### {record.label}: {record.choices[name]} (`{name}`{mark})\n\n{_first_line(variant)}\n"
        yield f"\n{_table(fields)}" if fields else ""


def _first_line(variant: type[BaseModel]) -> str:
    return (variant.__doc__ or "").strip().splitlines()[0]


def _table(records: tuple[FieldRecord, ...] | list[FieldRecord]) -> str:
    return _COLUMNS + "".join(_row(record) for record in records)


def _row(record: FieldRecord) -> str:
    cells = (record.label, f"`{record.path}`", _default(record), _allowed(record), _meaning(record))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _meaning(record: FieldRecord) -> str:
    setting = record.setting
    marks = [
        mark
        for mark, holds in (
            ("advanced", setting.level == "advanced"),
            ("resume", setting.changeable_on_resume),
            ("not yet", bool(setting.not_yet)),
        )
        if holds
    ]
    condition = setting.applies_when
    counts, standing = "", f" *{', '.join(marks)}*" if marks else ""
    if condition is not None:
        values = " or ".join(_value(v) for v in condition.is_any_of)
        counts = f" Counts where `{condition.path}` is {values}."
    return f"{setting.help}{counts}{standing}"


def _default(record: FieldRecord) -> str:
    if record.default in (None, "", ()):
        return record.setting.empty_means or "empty"
    return _value(record.default)


def _allowed(record: FieldRecord) -> str:
    if record.choices:
        names = (f"`{n}`{' (not yet)' if n in record.setting.not_yet_choices else ''}" for n in record.choices)
        return ", ".join(names)
    unit = f" {record.setting.unit}" if record.setting.unit else ""
    kinds = {"bool": "`true`, `false`", "every": "a number and a unit", "list": "a list", "map": "by part"}
    return (record.allowed + unit).strip() or kinds.get(record.kind, "")


def _value(value: Any) -> str:
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case Every():
            return str(value)
        case BaseModel():
            return f"`{getattr(value, 'name', '')}`"
        case tuple():
            return ", ".join(str(v) for v in value)
        case str():
            return f"`{value}`"
        case _:
            return str(value)
