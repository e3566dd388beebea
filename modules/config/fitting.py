"""Validate JSON data as a config: unknown keys are set aside, invalid values are replaced by their defaults."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from modules.config.migrations.tree_moves import source_of
from modules.config.schema import Config
from modules.settings.edit import get_path, reason_of
from modules.settings.every import Every
from modules.settings.field import record_of
from modules.system.problem import DEFAULT_USED, Problem, quote

_Place = tuple[Any, ...]  # keys of objects and indices of lists


def sift(
    raw: Mapping[str, Any],
    section: type[BaseModel],
    prefix: str,
    unknown: dict[str, Any],
    problems: list[Problem],
) -> dict[str, Any]:
    """Return the keys that are fields of `section`; move the others to `unknown` by their path and report them."""
    known: dict[str, Any] = {}
    for key, value in raw.items():
        path = f"{prefix}{key}"
        if key not in section.model_fields:
            unknown[path] = value
            problems.append(Problem(path, "This setting is unknown; it is kept in the file.", "info"))
        else:
            known[key] = _sift_value(value, section, key, path, unknown, problems)
    return known


def _sift_value(
    value: Any,
    section: type[BaseModel],
    key: str,
    path: str,
    unknown: dict[str, Any],
    problems: list[Problem],
) -> Any:
    annotation = section.model_fields[key].annotation
    if annotation is str or not isinstance(value, dict | list | str):
        return value  # without its record: at each start, most of a config are such values
    record = record_of(section, key)
    is_variant = record is not None and record.kind == "section"
    if (
        isinstance(annotation, type)
        and issubclass(annotation, BaseModel)
        and isinstance(value, dict)
        and not is_variant
    ):
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


def validate(tree: dict[str, Any], problems: list[Problem]) -> Config:
    """Validate the tree; remove invalid values, so that their defaults apply, until the rest is valid."""
    while True:
        try:
            return Config.model_validate(tree)
        except ValidationError as error:
            findings = error.errors(include_url=False, include_input=False)
        messages: dict[_Place, str] = {}
        for finding in findings:
            messages.setdefault(_place_of(tree, finding["loc"]), reason_of(finding))
        outermost = [p for p in messages if not any(p[:n] in messages for n in range(1, len(p)))]
        # A list that is too short without its invalid entries: why they are invalid is the reason.
        inner = {p[:n]: messages[p] for p in reversed(messages) for n in range(1, len(p))}
        removed = _removed_items(outermost)
        # From last to first: removing an entry of a list shifts the entries after it.
        dropped = [_drop(tree, place, inner.get(place, messages[place]), removed) for place in reversed(outermost)]
        problems += reversed(dropped)


def default_named(problem: Problem, config: Config) -> Problem:
    """Return the problem with the value of the default that is used, if its message mentions one."""
    if DEFAULT_USED not in problem.message:
        return problem
    try:
        words = _describe_default(get_path(config, problem.path))
    except KeyError:
        return problem
    return replace(problem, message=problem.message.replace(DEFAULT_USED, f"the default, {words}, is used instead"))


def _describe_default(default: object) -> str:
    match default:
        case Every():
            return str(default)
        case BaseModel():
            return quote(getattr(default, "name", "..."))
        case tuple():
            return ", ".join(map(quote, default)) or "none"
        case _:
            return quote(default)


def _place_of(tree: dict[str, Any], location: _Place) -> _Place:
    """Return the place in the tree of one of pydantic's locations: the value to remove."""
    node: Any = tree[location[0]]
    place = location[:1]
    for step in location[1:]:
        if isinstance(node, dict) and step not in node:
            continue  # pydantic names the variant of a union here; the data does not
        if not isinstance(node, dict) and not (isinstance(node, list) and isinstance(step, int)):
            break
        if isinstance(node, dict) and node.keys() <= Every.model_fields.keys():
            break  # a number and its unit are only valid together
        node = node[step]
        place = (*place, step)
    return place


def _removed_items(places: list[_Place]) -> dict[_Place, list[int]]:
    """Return the sorted indices of the removed items, by the place of their list."""
    removed: dict[_Place, list[int]] = {}
    for *folders, step in places:
        if isinstance(step, int):
            removed.setdefault(tuple(folders), []).append(step)
    return {place: sorted(numbers) for place, numbers in removed.items()}


def _drop(tree: dict[str, Any], place: _Place, message: str, removed: Mapping[_Place, list[int]]) -> Problem:
    """Remove the value at a place and return a problem for it, with its path after all removals."""
    holder: Any = tree
    for step in place[:-1]:
        holder = holder[step]
    source = _source_of(tree, place)
    value = holder.pop(place[-1])
    is_item = isinstance(holder, list)
    outcome = "it is left out" if is_item else DEFAULT_USED
    kept = place[:-1] if is_item else place
    path = ".".join(str(_new_index(kept, n, removed)) for n in range(len(kept)))
    given = f"{source} = {quote(value)}" if source else quote(value)
    return Problem(path, f"{given} is not valid ({message}); {outcome}.", "warning")


def _source_of(tree: Any, place: _Place) -> str:
    """Return the key of the user's file from which a value, or what holds it, was moved; empty if it was not."""
    source = ""
    for step in place:
        source = (source_of(tree, step) if isinstance(tree, dict) else "") or source
        tree = tree[step]
    return source


def _new_index(place: _Place, depth: int, removed: Mapping[_Place, list[int]]) -> Any:
    """Return one step of a place: for an item of a list, the index after the removal of earlier items."""
    step = place[depth]
    return step - bisect_left(removed.get(place[:depth], []), step) if isinstance(step, int) else step
