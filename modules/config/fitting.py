"""Fitting JSON data into the config: what is not known is set aside, what does not fit gives way to its default."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from modules.config.schema import Config
from modules.settings.edit import get_path
from modules.settings.every import Every
from modules.settings.field import FieldRecord, records_of
from modules.settings.reasons import reason_of
from modules.system.problem import DEFAULT_STANDS, Problem, shown

_Place = tuple[Any, ...]  # keys of objects and indices of lists


def sift(
    raw: Mapping[str, Any],
    section: type[BaseModel],
    prefix: str,
    unknown: dict[str, Any],
    problems: list[Problem],
) -> dict[str, Any]:
    """Return the keys that `section` knows; move the others to `unknown` by their path and report them."""
    records = {r.name: r for r in records_of(section) if "." not in r.path}
    known: dict[str, Any] = {}
    for key, value in raw.items():
        path = f"{prefix}{key}"
        if key not in section.model_fields:
            unknown[path] = value
            problems.append(Problem(path, "This setting is not known here; it is kept in the file.", "info"))
        else:
            known[key] = _sift_value(value, section, key, records.get(key), path, unknown, problems)
    return known


def _sift_value(
    value: Any,
    section: type[BaseModel],
    key: str,
    record: FieldRecord | None,
    path: str,
    unknown: dict[str, Any],
    problems: list[Problem],
) -> Any:
    annotation = section.model_fields[key].annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(value, dict):
        return sift(value, annotation, f"{path}.", unknown, problems)
    if record is None:
        return value
    if record.kind == "section" and isinstance(value, str):
        value = {"name": value}
    if record.kind == "section" and isinstance(value, dict):
        variant = record.variants.get(str(value.get("name", record.default.name)))
        named = {"name": record.default.name, **value}
        return sift(named, variant, f"{path}.", unknown, problems) if variant else value
    if record.kind == "map" and isinstance(value, dict) and record.item:
        return {
            k: sift(v, record.item, f"{path}.{k}.", unknown, problems) if isinstance(v, dict) else v
            for k, v in value.items()
        }
    if record.kind == "list" and isinstance(value, list) and record.item:
        return [
            sift(v, record.item, f"{path}.{i}.", unknown, problems) if isinstance(v, dict) else v
            for i, v in enumerate(value)
        ]
    return value


def validated(tree: dict[str, Any], problems: list[Problem]) -> Config:
    """Validate; drop what does not fit, so that the defaults stand, until the rest does."""
    while True:
        try:
            return Config.model_validate(tree)
        except ValidationError as error:
            findings = error.errors(include_url=False, include_input=False)
        messages: dict[_Place, str] = {}
        for finding in findings:
            messages.setdefault(_place_of(tree, finding["loc"]), reason_of(finding))
        outermost = [p for p in messages if not any(p[:n] in messages for n in range(1, len(p)))]
        gone = _items_gone(outermost)
        # From the last to the first: what is left out of a list moves what comes after it.
        dropped = [_drop(tree, place, messages[place], gone) for place in reversed(outermost)]
        problems += reversed(dropped)


def default_named(problem: Problem, config: Config) -> Problem:
    """Return a problem that says that a default stands with that default, where it is short enough to be read."""
    if DEFAULT_STANDS not in problem.message:
        return problem
    try:
        words = _in_words(get_path(config, problem.path))
    except KeyError:
        return problem
    return replace(problem, message=problem.message.replace(DEFAULT_STANDS, f"the default, {words}, stands instead"))


def _in_words(default: object) -> str:
    match default:
        case Every():
            return str(default)
        case BaseModel():
            return shown(getattr(default, "name", "..."))
        case tuple():
            return ", ".join(map(shown, default)) or "none"
        case _:
            return shown(default)


def _place_of(tree: dict[str, Any], location: _Place) -> _Place:
    """Return where in the tree a location of pydantic's is: the value that has to go."""
    node: Any = tree[location[0]]
    place = location[:1]
    for step in location[1:]:
        if isinstance(node, dict) and step not in node:
            continue  # pydantic names the variant of a union here; the data does not
        if not isinstance(node, dict) and not (isinstance(node, list) and isinstance(step, int)):
            break
        if isinstance(node, dict) and node.keys() <= Every.model_fields.keys():
            break  # a number and its unit stand or fall together
        node = node[step]
        place = (*place, step)
    return place


def _items_gone(places: list[_Place]) -> dict[_Place, list[int]]:
    """Return the numbers of the items that are left out, in order, by the place of their list."""
    gone: dict[_Place, list[int]] = {}
    for *folders, step in places:
        if isinstance(step, int):
            gone.setdefault(tuple(folders), []).append(step)
    return {place: sorted(numbers) for place, numbers in gone.items()}


def _drop(tree: dict[str, Any], place: _Place, message: str, gone: Mapping[_Place, list[int]]) -> Problem:
    """Remove the value at a place, and say so where the rest is once the others are removed, too."""
    holder: Any = tree
    for step in place[:-1]:
        holder = holder[step]
    value = holder.pop(place[-1])
    is_item = isinstance(holder, list)
    stands = "it is left out" if is_item else DEFAULT_STANDS
    kept = place[:-1] if is_item else place
    path = ".".join(str(_number_then(kept, n, gone)) for n in range(len(kept)))
    return Problem(path, f"{shown(value)} does not fit ({message}); {stands}.", "warning")


def _number_then(place: _Place, depth: int, gone: Mapping[_Place, list[int]]) -> Any:
    """Return a step of a place; of an item of a list the number it has once earlier items are left out."""
    step = place[depth]
    return step - bisect_left(gone.get(place[:depth], []), step) if isinstance(step, int) else step
