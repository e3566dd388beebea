"""The fields and their groups, read from the config's declarations, and which of them a form shows: relevant ones at
the chosen level, and changed ones.

Nothing under `ui/` names a particular field: a field, optimizer, schedule or family that is declared in `modules/`
appears in the window without an edit here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from modules.config.records import heads, inner_records, is_reachable, record_at, top_records
from modules.config.schema import Config
from modules.settings.edit import condition_path, get_path, is_relevant
from modules.settings.field import FieldRecord, records_of_entry


def value_at(config: Config, path: str) -> Any:
    """Return the value at a path; None if the config has no such field."""
    try:
        return get_path(config, path)
    except KeyError:
        return None


@dataclass(frozen=True, slots=True)
class Group:
    """Fields under one heading."""

    key: str
    title: str
    records: tuple[FieldRecord, ...]


def nearest_field(config: Config, path: str) -> str:
    """Return the longest prefix of a path that is a field or a list entry."""
    return next((head for head in (path, *heads(path)) if _is_there(config, head)), path)


def variant_records(config: Config, record: FieldRecord) -> tuple[FieldRecord, ...]:
    """Return the fields of the chosen variant of a section, such as an optimizer's own."""
    variant: type[BaseModel] = type(get_path(config, record.path))
    return inner_records(variant, record.path)


def inline_records(config: Config, record: FieldRecord) -> tuple[FieldRecord, ...]:
    """Return the fields of the chosen variant under the heading of the choice, or under none: they stand below it."""
    return tuple(r for r in variant_records(config, record) if r.setting.group in ("", record.setting.group))


def groups_of(config: Config, sections: Iterable[str], *, without: Collection[str] = ()) -> tuple[Group, ...]:
    """Return the groups of some top-level sections in the order of declaration; equal headings of one section merge.
    A single field, given by its path, counts as a section; fields in `without` are left out.

    The parts of the model give one group each, named and ordered by the family's spec. Fields of a chosen variant with
    a heading of their own are in its group. Lists have their own editors and are left out.
    """
    groups: dict[str, Group] = {}
    for section in sections:
        for record in top_records(type(config)).values():
            is_inside = section in (record.path, record.path.partition(".")[0])
            if not is_inside or record.path in without or record.kind == "list":
                continue
            for group in _groups_of_record(config, record):
                before = groups.get(group.key)
                records = (*before.records, *group.records) if before else group.records
                groups[group.key] = Group(group.key, group.title, records)
    return tuple(groups.values())


def claimed_sections(config_type: type[Config]) -> tuple[str, ...]:
    """Return the names of the config's top-level sections with editable fields."""
    return tuple(dict.fromkeys(path.partition(".")[0] for path in top_records(config_type)))


def item_groups(section: type[BaseModel], path: str, title: str) -> tuple[Group, ...]:
    """Return the groups of an item of a list, in the order of declaration; fields without a heading are under `title`.

    Equal headings merge.
    """
    groups: dict[str, list[FieldRecord]] = {}
    for record in inner_records(section, path):
        groups.setdefault(record.setting.group or title, []).append(record)
    return tuple(Group(f"{path}/{name}", name, tuple(records)) for name, records in groups.items())


def _groups_of_record(config: Config, record: FieldRecord) -> Iterator[Group]:
    if record.kind == "map":
        yield from _map_groups(config, record)
        return
    yield _plain_group(record)
    if record.kind == "section":
        inline = inline_records(config, record)
        yield from (_plain_group(r) for r in variant_records(config, record) if r not in inline)


def _plain_group(record: FieldRecord) -> Group:
    section = record.path.partition(".")[0]
    title = record.setting.group or section.replace("_", " ").capitalize()
    return Group(f"{section}/{title}", title, (record,))


def _map_groups(config: Config, record: FieldRecord) -> Iterator[Group]:
    for part in config.family_parts:
        visible = tuple(f for f in records_of_entry(record, part) if f.setting.is_for(part))
        yield Group(f"{record.path}/{part.name}", part.label, visible)


def _is_there(config: Config, path: str) -> bool:
    try:
        get_path(config, path)
    except KeyError:
        return False
    return record_at(config, path) is not None or path.rpartition(".")[2].isdigit()


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
    if not later:
        return record.choices
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
