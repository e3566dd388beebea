"""Whether a model has the size of a published one: its configs then need not be in its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from modules.families.parts.single_file.models import CONFIGS_KEY, configs_of_file, shipped_configs
from modules.families.parts.single_file.record import Configs
from modules.families.registry import published_model
from modules.formats.checkpoint_header import CheckpointHeader


def configs_to_bring(model: str, configs: Configs) -> str:
    """Return the configs that a file of this model must contain, as JSON by part, without local paths.

    Empty if the model has the published size.
    """
    if not is_unusual(model, configs):
        return ""
    own_configs = {part: {k: v for k, v in c.items() if k != "_name_or_path"} for part, c in configs.items()}
    return json.dumps(own_configs, sort_keys=True, default=list)


def is_unusual(model: str, configs: Configs) -> bool:
    """Whether a model has other sizes than the published one, so that its file must contain its configs."""
    shipped, record = shipped_configs(model), published_model(model).single_file
    if not shipped or record is None:
        return not shipped
    return any(
        _shaping(configs[part], name, record.silent) != _shaping(config, name, record.silent)
        for part, config in shipped.items()
        if part in configs
        for name in record.shaping.get(part, ())
        if name in configs[part] or config.get(name)
    )


def _shaping(config: Mapping[str, Any], name: str, silent: Mapping[str, Any]) -> Any:
    value = config.get(name, silent.get(name))
    return list(value) if isinstance(value, tuple) else value


def has_published_size(model: str, header: CheckpointHeader) -> bool:
    """Whether a file has the size of its published model, by the configs in its metadata and by the widths from which
    programs recognize the model.
    """
    if CONFIGS_KEY in header.metadata and is_unusual(model, configs_of_file(model, header.shapes, header.metadata)):
        return False
    record = published_model(model).single_file
    widths = () if record is None else record.widths(header, shipped_configs(model))
    return all(width == expected for width, expected in widths if width and expected)
