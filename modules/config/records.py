"""The records of the fields of a config, or of another tree of sections, by path; also in variants, parts and lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from pydantic import BaseModel

from modules.settings.edit import get_path
from modules.settings.field import FieldRecord, Section, records_of


@cache
def top_records(config_type: type[Section]) -> Mapping[str, FieldRecord]:
    """Return the records of a config type by path, nested sections flattened, lists and maps as one record each."""
    return {record.path: record for record in records_of(config_type)}


@cache
def inner_records(section: type[BaseModel], prefix: str) -> tuple[FieldRecord, ...]:
    """Return the records of a variant or of an item of a map or list, under its path."""
    return records_of(section, prefix)


def record_at(config: Section, path: str) -> FieldRecord | None:
    """Return the record of the field at a path, also inside variants, parts and lists; None if it does not exist."""
    top = top_records(type(config))
    if path in top:
        return top[path]
    holder = next((top[head] for head in heads(path) if head in top), None)
    if holder is None:
        return None
    section, prefix = _item_type(config, holder), holder.path
    if holder.kind in ("map", "list"):
        prefix += "." + path[len(holder.path) + 1 :].partition(".")[0]
    return next((r for r in inner_records(section, prefix) if r.path == path), None) if section else None


def heads(path: str) -> Iterator[str]:
    """Yield the prefixes of a dotted path, longest first: a.b.c gives a.b, then a."""
    names = path.split(".")
    for count in range(len(names) - 1, 0, -1):
        yield ".".join(names[:count])


def _item_type(config: Section, holder: FieldRecord) -> type[BaseModel] | None:
    return type(get_path(config, holder.path)) if holder.kind == "section" else holder.item
