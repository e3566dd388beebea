"""The configs of published models, and the layout of their parts in single files, by the names of tensors in a file.

A file's own configs override the published ones, so that models of unusual size keep their shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from modules.families.parts.single_file.record import Configs, PartLayout, SingleFile
from modules.families.parts.single_file.slots import missing_originals
from modules.families.registry import published_model
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason

CONFIGS_KEY = "darkroom_part_configs"
"""The metadata key with the parts' configs in a file of unusual size, as JSON by part."""

_MAX_CONFIGS_CHARS = 500_000  # real ones have a few thousand


def shipped_configs(model: str) -> dict[str, dict[str, Any]]:
    """Return the configs of a model's parts and of its scheduler, by part. Raises DarkroomError for an unknown name."""
    return published_model(model).shipped_configs()


def configs_of_file(
    model: str, shapes: Mapping[str, tuple[int, ...]], metadata: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return the configs of a checkpoint's parts: the bundled ones, adapted to the shapes of its tensors, and those in
    its metadata. `shapes` are by original names.
    """
    record, configs = published_model(model).single_file, shipped_configs(model)
    if record is not None:
        configs = {name: dict(config) for name, config in record.configs_of(configs, shapes).items()}
    brought = _configs_in_metadata(metadata)
    known = configs or brought  # without bundled configs, the file's own are the only ones
    return configs | {name: config for name, config in brought.items() if name in known}


def configs_of_model(
    model: str, shapes: Mapping[str, tuple[int, ...]], metadata: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return `configs_of_file` with the configs of parts that the file lacks: they may have files of their own."""
    return {**shipped_configs(model), **_configs_in_metadata(metadata), **configs_of_file(model, shapes, metadata)}


def _configs_in_metadata(metadata: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the configs in a file's metadata, by part."""
    text = metadata.get(CONFIGS_KEY, "{}")
    try:
        brought = json.loads(text) if len(text) <= _MAX_CONFIGS_CHARS else {}
    except (ValueError, RecursionError):
        return {}
    return {n: c for n, c in brought.items() if isinstance(c, dict)} if isinstance(brought, dict) else {}


def layouts(model: str, configs: Configs) -> dict[str, PartLayout]:
    """Return the layout of every part that a single file of a model has, by part; none for a model without that form.

    Raises DarkroomError if the configs, which may come from a file, are not valid.
    """
    record = published_model(model).single_file
    try:
        return {} if record is None else {layout.name: layout for layout in record.parts(configs)}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise DarkroomError(f"The configs of the model's parts are not valid: {plain_reason(error)[:200]}.") from error


def single_file_of(model: str) -> SingleFile:
    """Return the layout of a model in a single file. Raises DarkroomError for a model without that form."""
    record = published_model(model).single_file
    if record is None:
        raise DarkroomError(
            f"{published_model(model).label} cannot be saved as a single file.", advice="Save it as a diffusers folder."
        )
    return record


def original_names(model: str, names: Iterable[str]) -> dict[str, str]:
    """Return the original layout's name of each tensor of a model's file: `{original: name in the file}`."""
    record = published_model(model).single_file
    return {name: name for name in names} if record is None else record.original_names(names)


def averaged_names(layout: PartLayout, names: Iterable[str]) -> dict[str, str]:
    """Return the names of a part's EMA weights, `{original: name in the file}`, where there are any."""
    if not layout.averaged_prefix:
        return {}
    there = set(names)
    flat = {s.original: f"{layout.averaged_prefix}{s.original.replace('.', '')}" for s in layout.slots}
    return {f"{layout.prefix}{original}": name for original, name in flat.items() if name in there}


def missing_names(layout: PartLayout, names: Iterable[str]) -> list[str]:
    """Return the tensors of a part that are missing from a file's original names."""
    inside = [n.removeprefix(layout.prefix) for n in names if n.startswith(layout.prefix)]
    return [f"{layout.prefix}{n}" for n in missing_originals(layout.slots, inside)]


def left_over_names(layout: PartLayout, names: Iterable[str]) -> list[str]:
    """Return the tensors under a part's prefix that belong to no layer of it, without known unused ones."""
    known = {f"{layout.prefix}{s.original}" for s in layout.slots}
    inside = (n for n in names if n.startswith(layout.prefix) and n not in known)
    return sorted(n for n in inside if not layout.is_unused(n))
