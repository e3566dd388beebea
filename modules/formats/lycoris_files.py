"""LyCORIS adapters in the kohya form: `<layer>.<factor>` and a scalar `<layer>.alpha`, dots in names as underscores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import torch

from modules.system.errors import DarkroomError

_ALPHA = "alpha"


@dataclass(frozen=True, eq=False)
class LycorisLayer:
    """The factors of one layer by their names in files, as "lokr_w1", with the alpha that scales their product."""

    part: str
    path: str
    factors: Mapping[str, torch.Tensor]
    alpha: float | None


def to_kohya(layers: Iterable[LycorisLayer], name_of: Callable[[str, str], str]) -> dict[str, torch.Tensor]:
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
) -> list[LycorisLayer]:
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
        found.append(LycorisLayer(*names[layer], own, None if alpha is None else float(alpha)))
    return found
