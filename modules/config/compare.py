"""How two configs differ, and which differences prevent a run from being resumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from modules.config.codec import encode
from modules.config.schema import Config
from modules.settings.edit import get_path
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
    free = {"unknown", "remembered"} | {r.path for r in records_of(Config) if r.setting.changeable_on_resume}
    free |= {
        f"{record.path}.{key}.{inner.name}"
        for record in records_of(Config)
        if record.kind == "map" and record.item
        for key in {*one.parts, *other.parts}
        for inner in records_of(record.item)
        if inner.setting.changeable_on_resume
    }
    free |= {f"{path}.{name}" for path, name in _changeable_of_variants(one, other)}
    fixed = [p for p in differing_paths(one, other) if not any(p == f or p.startswith(f + ".") for f in free)]
    others = _other_variants(one, other)
    return sorted({next((s for s in others if p.startswith(f"{s}.")), p) for p in fixed})


def changed_learning(one: Config, other: Config) -> list[str]:
    """Return the differing paths of the learning rates, their schedule and the weight decay, which may change."""
    return [p for p in differing_paths(one, other) if p.startswith(_LEARNING) or p.endswith(".learning_rate")]


def _other_variants(one: Config, other: Config) -> list[str]:
    """Return the paths of the sections of which each config has another variant."""
    sections = [record.path for record in records_of(Config) if record.kind == "section"]
    return [path for path in sections if get_path(one, path).name != get_path(other, path).name]


def _changeable_of_variants(one: Config, other: Config) -> Iterator[tuple[str, str]]:
    """Yield the fields that may change of each variant that both configs have, such as the same optimizer's."""
    for record in records_of(Config):
        if record.kind == "section" and get_path(one, record.path).name == get_path(other, record.path).name:
            variant: type[Section] = type(get_path(one, record.path))
            for inner in records_of(variant):
                if inner.setting.changeable_on_resume:
                    yield record.path, inner.name


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}")
    else:
        yield path, tree
