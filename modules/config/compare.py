"""How two configs differ, which differences prevent a run from being resumed, and the config of a resumed run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from modules.config.codec import encode
from modules.config.schema import Config
from modules.settings.edit import get_path, has_path, set_path
from modules.settings.field import Section, records_of

_LEARNING = ("training.learning_rate", "training.schedule.", "training.optimizer.")


def differing_paths(one: Config, other: Config) -> list[str]:
    """Return the sorted dotted paths of all values that differ; a list counts as one value.

    A part of the model that is missing from one config has its defaults there.
    """
    names = {*one.parts, *other.parts}
    one, other = (c.model_copy(update={"parts": {n: c.part(n) for n in names}}) for c in (one, other))
    # Neither equal sections nor lists are compared field by field: that takes long with a thousand concepts.
    fields, other_fields = dict(one), dict(other)
    differing = {n for n in fields.keys() | other_fields.keys() if fields.get(n) != other_fields.get(n)}
    lists = {n for n in differing if isinstance(fields.get(n), tuple) and isinstance(other_fields.get(n), tuple)}
    left, right = (
        {path: leaf for name, value in encode(config, differing - lists).items() for path, leaf in _leaves(value, name)}
        for config in (one, other)
    )
    both = left.keys() & right.keys()
    return sorted(lists | (left.keys() ^ right.keys()) | {path for path in both if left[path] != right[path]})


def fixed_on_resume(one: Config, other: Config) -> list[str]:
    """Return the paths that differ and that may not change when a run is resumed.

    Unknown settings and settings remembered for choices that are not selected do not count. Another choice, such as
    another training method, is one path, the path of its section: the settings of both cannot be compared.
    """
    free = {"unknown", "remembered", *_changeable_paths(one, other)}
    fixed = [p for p in differing_paths(one, other) if not any(p == f or p.startswith(f + ".") for f in free)]
    others = _other_variants(one, other)
    return sorted({next((s for s in others if p.startswith(f"{s}.")), p) for p in fixed})


def resumed_config(of_run: Config, now: Config) -> Config:
    """Return the run's config with the current values of settings that may change on resume (epochs, samples, ...).

    Settings that only one of the configs has keep the run's values, such as those of another model family's parts.
    """
    result = of_run
    for path in _changeable_paths(of_run, now):
        if has_path(of_run, path) and has_path(now, path):
            result, _ = set_path(result, path, get_path(now, path))
    return result


def changed_learning(one: Config, other: Config) -> list[str]:
    """Return the differing paths of the learning rates, their schedule and the weight decay, which may change."""
    return [p for p in differing_paths(one, other) if p.startswith(_LEARNING) or p.endswith(".learning_rate")]


def _other_variants(one: Config, other: Config) -> list[str]:
    """Return the paths of the sections with different variants in the two configs."""
    sections = [record.path for record in records_of(Config) if record.kind == "section"]
    return [path for path in sections if get_path(one, path).name != get_path(other, path).name]


def _changeable_paths(one: Config, other: Config) -> Iterator[str]:
    """Yield the paths that may change on resume, also inside the parts and the variants that both configs have."""
    for record in records_of(Config):
        if record.setting.changeable_on_resume:
            yield record.path
        elif record.kind == "map" and record.item:
            names = sorted({*one.parts, *other.parts})
            yield from (f"{record.path}.{name}.{inner}" for name in names for inner in _changeable_names(record.item))
        elif record.kind == "section":
            variant: type[Section] = type(get_path(one, record.path))
            if variant is type(get_path(other, record.path)):
                yield from (f"{record.path}.{inner}" for inner in _changeable_names(variant))


def _changeable_names(section: type[BaseModel]) -> list[str]:
    return [record.name for record in records_of(section) if record.setting.changeable_on_resume]


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}")
    else:
        yield path, tree
