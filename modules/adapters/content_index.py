"""How a run's own copy of its start file is laid out: names of tensors, and an index in the metadata. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_INDEX = "darkroom_adapter_layers"
_LAYER, _OTHER = "layer", "other"


@dataclass(frozen=True, slots=True)
class ContentIndex:
    """What the copy holds: layers by part and path, each with its alpha, and the other tensors by their names.

    `where` is the name of the file that it is a copy of.
    """

    where: str
    layers: tuple[tuple[str, str, float | None], ...]
    others: tuple[str, ...]

    def to_metadata(self) -> dict[str, str]:
        """Return the metadata of a copy with this index."""
        return {_INDEX: json.dumps({"where": self.where, "layers": self.layers, "others": self.others})}


def index_in(metadata: Mapping[str, str]) -> ContentIndex:
    """Return the index in the metadata of a copy. Raises ValueError, KeyError or TypeError if there is none."""
    index = json.loads(metadata[_INDEX])
    layers = tuple((part, path, alpha) for part, path, alpha in index["layers"])
    return ContentIndex(index["where"], layers, tuple(index["others"]))


def layer_tensor(number: int, factor: str) -> str:
    """Return the name of a factor of the layer with this number in the index."""
    return f"{_LAYER}.{number}.{factor}"


def other_tensor(number: int) -> str:
    """Return the name of the other tensor with this number in the index."""
    return f"{_OTHER}.{number}"


def factors_by_layer(tensors: Mapping[str, T]) -> dict[int, dict[str, T]]:
    """Return the factors of each layer by its number, from tensors, or what is known of them, by name.

    Raises ValueError for a name that `layer_tensor` does not give.
    """
    found: dict[int, dict[str, T]] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition(".")
        if group == _LAYER:
            number, _, factor = rest.partition(".")
            found.setdefault(int(number), {})[factor] = tensor
    return found
