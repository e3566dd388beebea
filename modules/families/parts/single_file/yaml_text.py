"""A tree of settings as YAML, for the .yaml beside a checkpoint: mappings, lists of mappings and plain values.

Torch-free, and without a YAML library: the trees are our own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Tree = dict[str, Any]


def yaml_text(tree: Mapping[str, Any]) -> str:
    """Return a tree as YAML text."""
    return "\n".join(_lines(tree, "")) + "\n"


def _lines(tree: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield f"{indent}{key}:"
            for item in value:
                first, *rest = _lines(item, indent + "    ")
                yield f"{indent}  - {first.lstrip()}"
                yield from rest
        else:
            yield f"{indent}{key}: {_plain(value)}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
