"""Walking the fields of a config that count as it stands: inside the chosen variants, the parts and the lists."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from modules.config.edit import get_path
from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.settings.field import FieldRecord, When, records_of


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


def live_records(config: Config) -> Iterator[FieldRecord]:
    """Yield the record of every field that counts now, under its full path.

    A field whose condition does not hold, a variant that is not chosen, what concerns only trainable parts in one that
    its family never trains, and what lies in a switched-off entry of a list: none of these counts.
    """
    yield from _counting(config, records_of(type(config)))


def _counting(config: Config, records: tuple[FieldRecord, ...]) -> Iterator[FieldRecord]:
    for record in records:
        if is_relevant(config, record):
            yield record
            yield from _inside(config, record)


def _inside(config: Config, record: FieldRecord) -> Iterator[FieldRecord]:
    match record.kind:
        case "section":
            variant: type[BaseModel] = type(get_path(config, record.path))
            yield from _counting(config, records_of(variant, record.path))
        case "map" if record.item:
            for part in FAMILIES[config.model.family].parts:
                fields = records_of(record.item, f"{record.path}.{part.name}")
                wanted = tuple(f for f in fields if part.trainable or not f.setting.only_if_trainable)
                yield from _counting(config, wanted)
        case "list" if record.item:
            for index, item in enumerate(get_path(config, record.path)):
                if getattr(item, "enabled", True):
                    yield from _counting(config, records_of(record.item, f"{record.path}.{index}"))
