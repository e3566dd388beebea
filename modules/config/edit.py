"""Reading and editing a config by dotted path. A config is frozen: an edit returns another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from modules.config.schema import Config
from modules.config.sections.model import Part
from modules.families.registry import FAMILIES
from modules.settings.field import Section
from modules.settings.reasons import reason_of
from modules.system.problem import Problem, shown


def get_path(config: Config, path: str) -> Any:
    """Return the value at a dotted path ("training.optimizer.beta1", "concepts.0.path", "parts.unet.train").

    A part of the model that the config says nothing of has its defaults. Raises KeyError for a path that does not
    exist.
    """
    parts = {part.name for part in FAMILIES[config.model.family].parts}
    node: Any = config
    for name in path.split("."):
        is_silent = node is config.parts and name in parts and name not in config.parts
        node = Part() if is_silent else _child(node, name, path)
    return node


def set_path(config: Config, path: str, value: Any) -> tuple[Config, list[Problem]]:
    """Return the config with one value changed, and the problems found; with a problem it is unchanged.

    The value may be a plain JSON value or a section; the name of a variant chooses it, with what it held when it was
    last chosen. Raises KeyError for a path that does not exist.
    """
    present = get_path(config, path)
    if isinstance(value, str) and isinstance(present, Section):
        return choose_variant(config, path, value)
    tree = config.model_dump()
    names = path.split(".")
    node: Any = tree
    for name in names[:-1]:
        node = node[int(name)] if isinstance(node, list | tuple) else node.setdefault(name, {})
    plain = _plain(value)
    if isinstance(node, tuple | list):
        raise KeyError(f"{path}: set the whole list instead")
    node[names[-1]] = plain
    try:
        return type(config).model_validate(tree), []
    except ValidationError as error:
        return config, [Problem(path, describe(error), "error")]


def choose_variant(config: Config, path: str, name: str) -> tuple[Config, list[Problem]]:
    """Return the config with a section of variants (an optimizer, say) switched to another of them.

    What was set for the one that goes is remembered in the config, and what is remembered of the one that comes is
    taken up again; where that no longer fits, its defaults stand. Raises KeyError for a path that does not exist.
    """
    present = get_path(config, path)
    if present.name == name:
        return config, []
    memory = config.remembered.get(path, {})
    changed, problems = set_path(config, path, {**memory.get(name, {}), "name": name})
    if problems and name in memory:
        changed, problems = set_path(config, path, {"name": name})
    if problems:
        return config, problems
    own = present.model_dump(exclude={"name"})
    kept = {key: value for key, value in memory.items() if key not in (name, present.name)}
    if own != type(present)().model_dump(exclude={"name"}):
        kept[present.name] = own
    remembered = {key: value for key, value in {**config.remembered, path: kept}.items() if value}
    return changed.model_copy(update={"remembered": remembered}), []


def describe(error: ValidationError) -> str:
    """Return the first finding of a validation as a sentence with what was given."""
    finding = error.errors(include_url=False)[0]
    return f"{shown(finding.get('input'))} does not fit: {reason_of(finding)}."


def _child(node: Any, name: str, path: str) -> Any:
    match node:
        case BaseModel() if name in type(node).model_fields:
            return getattr(node, name)
        case Mapping() if name in node:
            return node[name]
        case tuple() if name in map(str, range(len(node))):
            return node[int(name)]
        case _:
            raise KeyError(f"There is no setting {path!r} ({name!r} is not known there).")


def _plain(value: Any) -> Any:
    match value:
        case BaseModel():
            return value.model_dump()
        case tuple() | list():
            return [_plain(v) for v in value]
        case _:
            return value
