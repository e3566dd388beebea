"""Reading, walking and editing a tree of sections by dotted path. A tree is frozen: an edit returns a new one.

Only active fields are walked: those inside the selected variants, maps and lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from modules.settings.field import FieldRecord, Section, When, records_of, records_of_entry
from modules.system.problem import Problem, list_first, quote, shorten

_MAX_NAMED = 16
_PLACE = re.compile(r"0|[1-9][0-9]{0,8}")  # of an entry of a list, in a path
_KINDS: Mapping[str, str] = {
    "int_type": "it should be a whole number",
    "int_parsing": "it should be a whole number",
    "int_from_float": "it should be a whole number",
    "int_parsing_size": "it has too many digits for a whole number",
    "float_type": "it should be a number",
    "float_parsing": "it should be a number",
    "finite_number": "it should be a finite number",
    "bool_type": "it should be true or false",
    "bool_parsing": "it should be true or false",
    "string_type": "it should be text",
    "tuple_type": "it should be a list",
    "model_type": "it should be a group of settings in braces",
    "too_short": "it should have at least one entry",
}


def reason_of(finding: Mapping[str, Any]) -> str:
    """Return one pydantic finding as half a sentence, without a full stop: what the value should be."""
    if finding["type"] == "model_type" and finding["ctx"]["class_name"] == "Every":
        return 'it should be a number and a unit, such as {"n": 10, "unit": "step"}'
    if finding["type"] in _KINDS:
        return _KINDS[finding["type"]]
    if finding["type"] == "union_tag_invalid":
        choices = finding["ctx"]["expected_tags"].split(", ")
        return f"there is no such choice; the choices are {list_first(choices, _MAX_NAMED)}"
    message = str(finding["msg"]).removeprefix("Value error, ").replace("Input should be", "it should be")
    message = message.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    message = message.replace("greater than", "above").replace("less than", "below")
    return shorten(f"{message[:1].lower()}{message[1:]}", max_chars=200)


Tree = TypeVar("Tree", bound=Section)


def get_path(tree: Section, path: str) -> Any:
    """Return the value at a dotted path ("training.optimizer.beta1", "concepts.0.path", "parts.unet.train").

    An entry missing from a map of sections has its defaults (`Section.map_keys`). Raises KeyError for a path that does
    not exist.
    """
    node: Any = tree
    entries: Mapping[str, Callable[[], BaseModel]] = {}
    for name in path.split("."):
        inner = _default_entries(node, name)
        node = entries[name]() if name in entries and name not in node else _child(node, name, path)
        entries = inner
    return node


def has_path(tree: Section, path: str) -> bool:
    """Return whether a tree has a setting: another variant or model family may lack it."""
    try:
        get_path(tree, path)
    except KeyError:
        return False
    return True


def set_path(tree: Tree, path: str, value: Any) -> tuple[Tree, list[Problem]]:
    """Return the tree with one value changed, and the problems found; with a problem it is unchanged.

    The value may be a plain JSON value or a section. The name of a variant selects it, with its values from when it was
    last selected. Raises KeyError for a path that does not exist.
    """
    present = get_path(tree, path)
    if isinstance(value, str) and isinstance(present, Section):
        return choose_variant(tree, path, value)
    data, holder = _open_path(tree, path)
    if isinstance(holder, list):
        raise KeyError(f"{path}: set the whole list instead")
    holder[path.rpartition(".")[2]] = _plain(value, present)
    try:
        return type(tree).model_validate(data), []
    except ValidationError as error:
        return tree, [Problem(path, describe(error), "error")]


def replace_value(tree: Tree, path: str, value: Any) -> Tree:
    """Return the tree with one value replaced by another valid one, which is not checked: for many trials of choices.

    Raises KeyError for a path that does not exist.
    """
    holder_path, _, name = path.rpartition(".")
    holder = get_path(tree, holder_path) if holder_path else tree
    if isinstance(holder, BaseModel):
        changed: Any = holder.model_copy(update={name: value})
    else:
        changed = {**holder, name: value}
    return replace_value(tree, holder_path, changed) if holder_path else changed


def choose_variant(tree: Tree, path: str, name: str) -> tuple[Tree, list[Problem]]:
    """Return the tree with a section of variants (such as an optimizer) switched to another variant.

    A tree with a field `remembered` stores the values of the previous variant there, and restores the remembered values
    of the new one; values that are no longer valid get their defaults. Raises KeyError for a path that does not exist.
    """
    present = get_path(tree, path)
    if present.name == name:
        return tree, []
    remembered: Mapping[str, Mapping[str, Mapping[str, Any]]] = getattr(tree, "remembered", {})
    memory = remembered.get(path, {})
    changed, problems = set_path(tree, path, {**memory.get(name, {}), "name": name})
    if problems and name in memory:
        changed, problems = set_path(tree, path, {"name": name})
    if problems or "remembered" not in type(tree).model_fields:
        return changed, problems
    values = present.model_dump(exclude={"name"})
    kept = {key: value for key, value in memory.items() if key not in (name, present.name)}
    if values != type(present)().model_dump(exclude={"name"}):
        kept[present.name] = values
    now = {key: value for key, value in {**remembered, path: kept}.items() if value}
    return changed.model_copy(update={"remembered": now}), []


def describe(error: ValidationError) -> str:
    """Return the first error of a validation as a sentence with the given value."""
    finding = error.errors(include_url=False)[0]
    return f"{quote(finding.get('input'))} is not valid: {reason_of(finding)}."


def _default_entries(node: Any, name: str) -> dict[str, Callable[[], BaseModel]]:
    """Return the known keys of a section's map, with what makes the default section of each that the map lacks."""
    if not isinstance(node, Section) or not (keys := node.map_keys(name)):
        return {}
    entry = get_args(type(node).model_fields[name].annotation)[1]
    return {key.name: partial(entry, **key.defaults) for key in keys}


def _child(node: Any, name: str, path: str) -> Any:
    match node:
        case BaseModel() if name in type(node).model_fields:
            return getattr(node, name)
        case Mapping() if name in node:
            return node[name]
        case tuple() if _PLACE.fullmatch(name) and int(name) < len(node):
            return node[int(name)]
        case _:
            raise KeyError(f"There is no setting {path!r} ({name!r} is unknown there).")


def _open_path(tree: Section, path: str) -> tuple[dict[str, Any], Any]:
    """Return the tree as plain data along a path, and the data that hold the value there.

    Sections next to the path stay as they are: they were validated before, and are not validated again.
    """
    data: dict[str, Any] = dict(tree)
    holder: Any = data
    for name in path.split(".")[:-1]:
        key: Any = int(name) if isinstance(holder, list) else name
        inner = holder[key] if isinstance(holder, list) or key in holder else {}
        holder[key] = inner = list(inner) if isinstance(inner, tuple) else dict(inner)
        holder = inner
    return data, holder


def _plain(value: Any, present: Any) -> Any:
    """Return a value as plain data, apart from entries of the present list, which are valid already."""
    match value:
        case BaseModel():
            return value.model_dump()
        case tuple() | list():
            valid = {id(entry) for entry in present} if isinstance(present, tuple) else set()
            return [entry if id(entry) in valid else _plain(entry, None) for entry in value]
        case _:
            return value


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
    yield from _active_fields(tree, records_of(type(tree)))


def present_records(tree: Section) -> Iterator[FieldRecord]:
    """Yield the records of `live_records`, and those of fields whose condition does not hold."""
    yield from _active_fields(tree, records_of(type(tree)), with_idle=True)


def _active_fields(
    tree: Section, records: tuple[FieldRecord, ...], *, with_idle: bool = False
) -> Iterator[FieldRecord]:
    for record in records:
        if with_idle or is_relevant(tree, record):
            yield record
            yield from _fields_inside(tree, record, with_idle)


def _fields_inside(tree: Section, record: FieldRecord, with_idle: bool) -> Iterator[FieldRecord]:
    match record.kind:
        case "section":
            variant: type[BaseModel] = type(get_path(tree, record.path))
            yield from _active_fields(tree, records_of(variant, record.path), with_idle=with_idle)
        case "map" if record.item:
            holder = get_path(tree, record.path.rpartition(".")[0]) if "." in record.path else tree
            for key in holder.map_keys(record.name):
                wanted = tuple(f for f in records_of_entry(record, key) if f.setting.is_for(key))
                yield from _active_fields(tree, wanted, with_idle=with_idle)
        case "list" if record.item:
            for index, item in enumerate(get_path(tree, record.path)):
                if getattr(item, "enabled", True):
                    fields = records_of(record.item, f"{record.path}.{index}")
                    yield from _active_fields(tree, fields, with_idle=with_idle)
