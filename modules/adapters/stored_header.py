"""An adapter file from its header alone: the layers that it changes, with the shapes of their factors. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modules.adapters.spec import Shape
from modules.formats.adapter_names import ALPHA, layer_and_factor
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.checkpoint_header import CheckpointHeader

_TEXT_MODEL = "text_model."
Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class StoredHeader:
    """The layers of a file by part and path, each with the shapes of its factors, and the names of the other tensors.

    Paths are those of the memory walk: text layers without "text_model.".
    """

    layers: Mapping[Place, Mapping[str, Shape]]
    others: tuple[str, ...]


def stored_header(header: CheckpointHeader, targets: AdapterTargets) -> StoredHeader:
    """Return what a file with this header holds for a model with these layers (`AdapterFile` has it with tensors)."""
    by_layer: dict[str, dict[str, Shape]] = {}
    names: dict[str, list[str]] = {}
    others = []
    for name, shape in sorted(header.shapes.items()):
        layer, factor = layer_and_factor(name)
        if layer:
            by_layer.setdefault(layer, {})[factor] = shape
            names.setdefault(layer, []).append(name)
        else:
            others.append(name)
    layers: dict[Place, Mapping[str, Shape]] = {}
    for layer, shapes in by_layer.items():
        target = targets.find(layer, shapes)
        place = None if target is None else (target.part, target.path.removeprefix(_TEXT_MODEL))
        if place is None or place in layers:
            others += names[layer]
        else:
            layers[place] = {factor: shape for factor, shape in shapes.items() if factor != ALPHA}
    return StoredHeader(layers, tuple(others))
