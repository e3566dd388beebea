"""The settings that a result contains: never more than the user asked for, and by default no path of this machine."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import Any

from modules.config.codec import encode
from modules.config.schema import Config
from modules.settings.field import FieldRecord, Section, records_of
from modules.system.paths import from_root

_LEFT_OUT = ("concepts", "concepts_file", "unknown", "remembered")
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_WEIGHTS = (".safetensors", ".ckpt", ".pt", ".pth", ".bin")


def embedded_config(config: Config) -> str:
    """Return the settings to embed, as JSON.

    "settings" leaves out the concepts, the sample prompts and the notes; folders get their defaults, and files keep
    their names alone. "all" embeds everything. Empty where the user wants none.
    """
    if config.output.embed_config == "none":
        return ""
    tree = encode(config)
    if config.output.embed_config == "settings":
        sampling = config.sampling.model_copy(update={"prompts": (), "prompts_file": ""})
        general = config.general.model_copy(update={"notes": ""})
        shared = config.model_copy(update={"concepts": (), "sampling": sampling, "general": general})
        tree = {k: v for k, v in encode(shared).items() if k not in _LEFT_OUT}
        _hide_paths(shared, tree)
    return json.dumps(tree, sort_keys=True, ensure_ascii=False)


def _hide_paths(section: Section, tree: dict[str, Any]) -> None:
    """Replace every path in `tree`, the JSON data of `section`; settings that it does not contain are skipped."""
    for record in records_of(type(section)):
        holder, place = _holder(section, record.path), _holder_in(tree, record.path)
        if place is None or record.name not in place:
            continue
        value = getattr(holder, record.name)
        if record.setting.path_kind:
            place[record.name] = _public_path(str(value), record)
        elif isinstance(value, Section):
            _hide_paths(value, place[record.name])
        elif record.kind == "list" and record.item:
            for item, inner in zip(value, place[record.name], strict=True):
                _hide_paths(item, inner)
        elif record.kind == "map" and record.item:
            for key, item in value.items():
                _hide_paths(item, place[record.name][key])


def _holder(section: Section, path: str) -> Any:
    node: Any = section
    for name in path.split(".")[:-1]:
        node = getattr(node, name)
    return node


def _holder_in(tree: dict[str, Any], path: str) -> dict[str, Any] | None:
    node: Any = tree
    for name in path.split(".")[:-1]:
        node = node.get(name) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else None


def _public_path(value: str, record: FieldRecord) -> str:
    """Return a path as it may be shared: a file's name, a Hugging Face repository, or a folder's default."""
    default = str(record.default)
    if not value or value == default:
        return value
    name = re.split(r"[\\/]", value.rstrip("\\/"))[-1]
    match record.setting.path_kind:
        case "folder":
            return default
        case "save":
            return str(PurePosixPath(default).parent / name)
        case _:
            return value if _is_repository(value) else name


def _is_repository(value: str) -> bool:
    is_named_so = bool(_REPOSITORY.fullmatch(value)) and not value.lower().endswith(_WEIGHTS)
    return is_named_so and not from_root(value).exists()
