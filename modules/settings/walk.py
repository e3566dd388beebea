"""Walking the active fields of a tree of sections: inside the selected variants, maps and lists."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from modules.settings.edit import get_path
from modules.settings.field import FieldRecord, Section, When, records_of, records_of_entry


def condition_path(record: FieldRecord, condition: When) -> str:
    """Return the full path of the field a condition refers to: a sibling's name, or with a dot a path of the tree."""
    if "." in condition.path:
        return condition.path
    holder = record.path.rpartition(".")[0]
    return f"{holder}.{condition.path}" if holder else condition.path


def is_relevant(tree: Section, record: FieldRecord) -> bool:
    """Return whether the field's condition holds; a field without one is always relevant."""
    condition = record.setting.applies_when
    return condition is None or any(_holds(tree, record, one) for one in condition.alternatives)


def _holds(tree: Section, record: FieldRecord, condition: When) -> bool:
    try:
        return condition.holds(get_path(tree, condition_path(record, condition)))
    except KeyError:
        return True


def live_records(tree: Section) -> Iterator[FieldRecord]:
    """Yield the record of every active field, under its full path.

    Not active: a field whose condition does not hold, a variant that is not selected, a training-only field of a part
    that is never trained, and the fields of a disabled entry of a list.
    """
    yield from _counting(tree, records_of(type(tree)))


def present_records(tree: Section) -> Iterator[FieldRecord]:
    """Yield the same records, and also the records of fields whose condition does not hold."""
    yield from _counting(tree, records_of(type(tree)), with_idle=True)


def _counting(tree: Section, records: tuple[FieldRecord, ...], *, with_idle: bool = False) -> Iterator[FieldRecord]:
    for record in records:
        if with_idle or is_relevant(tree, record):
            yield record
            yield from _inside(tree, record, with_idle)


def _inside(tree: Section, record: FieldRecord, with_idle: bool) -> Iterator[FieldRecord]:
    match record.kind:
        case "section":
            variant: type[BaseModel] = type(get_path(tree, record.path))
            yield from _counting(tree, records_of(variant, record.path), with_idle=with_idle)
        case "map" if record.item:
            holder = get_path(tree, record.path.rpartition(".")[0]) if "." in record.path else tree
            for key in holder.map_keys(record.name):
                wanted = tuple(f for f in records_of_entry(record, key) if f.setting.is_for(key))
                yield from _counting(tree, wanted, with_idle=with_idle)
        case "list" if record.item:
            for index, item in enumerate(get_path(tree, record.path)):
                if getattr(item, "enabled", True):
                    fields = records_of(record.item, f"{record.path}.{index}")
                    yield from _counting(tree, fields, with_idle=with_idle)
