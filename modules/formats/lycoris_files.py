"""LyCORIS adapters in the kohya form: `<layer>.<factor>` and a scalar `<layer>.alpha`, dots in names as underscores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import torch

from modules.formats.adapter_layers import AdapterLayer
from modules.system.errors import DarkroomError

_ALPHA = "alpha"


def to_kohya(layers: Iterable[AdapterLayer], name_of: Callable[[str, str], str]) -> dict[str, torch.Tensor]:
    """Return the tensors of a file; `name_of(part, path)` is the family's."""
    tensors: dict[str, torch.Tensor] = {}
    for layer in layers:
        name = name_of(layer.part, layer.path)
        tensors |= {f"{name}.{factor}": tensor for factor, tensor in layer.factors.items()}
        if layer.alpha is not None:
            tensors[f"{name}.{_ALPHA}"] = torch.tensor(float(layer.alpha))
    return tensors


def from_kohya(
    tensors: Mapping[str, torch.Tensor],
    names: Mapping[str, tuple[str, str]],
    *,
    label: str,
    factors: Collection[str],
) -> list[AdapterLayer]:
    """Return the layers of a file. `names` maps kohya names to (part, path), `factors` are those the adapter knows.

    Raises DarkroomError naming layers that the model does not have, or tensors of another kind of adapter (`label` is
    what people call this one).
    """
    by_layer: dict[str, dict[str, torch.Tensor]] = {}
    for name in sorted(tensors):
        layer, _, factor = name.partition(".")
        if factor != _ALPHA and factor not in factors:
            raise DarkroomError(
                f"The file is not a plain {label}: the tensor {name} is of another kind.",
                advice="DoRA scales and bundled embeddings are not supported here.",
            )
        if layer not in names:
            raise DarkroomError(f"The {label} has a layer that this model does not have: {layer}.")
        by_layer.setdefault(layer, {})[factor] = tensors[name]
    found = []
    for layer, own in by_layer.items():
        alpha = own.pop(_ALPHA, None)
        found.append(AdapterLayer(*names[layer], own, None if alpha is None else float(alpha)))
    return found
