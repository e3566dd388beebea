"""The linear layers of a transformer in diffusers' and in the published layout, the original: the slots of their
tensors in files of the transformer, and their names in adapter files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

from modules.families.parts.single_file.slots import Slot, limit_layers
from modules.families.published import TargetsOf
from modules.formats.adapter_forms import Layout
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A layer: its paths in diffusers and in the original layout, its weight's shape (out, in, kernel), its bias.

    With several `shares` the original layer has several of ours along its rows, and this is the one at `piece`.
    `swapped`: the halves of its rows are in the other order there.
    """

    path: str
    original: str
    shape: tuple[int, ...]
    piece: int = 0
    shares: tuple[int, ...] = (1,)
    swapped: bool = False
    bias: bool = True

    @classmethod
    def same(cls, path: str, shape: tuple[int, ...], *, bias: bool = True) -> Self:
        """Return a layer that has the same path in both."""
        return cls(path, path, shape, bias=bias)


LayersOf = Callable[[Config], Iterable[LinearLayer]]
"""The layers of a transformer of some config."""


def width_of(config: Config) -> int:
    """Return the width of a transformer's tokens."""
    return int(config["num_attention_heads"]) * int(config["attention_head_dim"])


def embedding_layers(
    path: str, original: str, columns: int, width: int, ends: tuple[str, str] = ("mlp.0", "mlp.2")
) -> Iterator[LinearLayer]:
    """Yield the two layers of an embedding, from `columns` to a width; `ends` are their names in the original."""
    yield LinearLayer(f"{path}.linear_1", f"{original}.{ends[0]}", (width, columns))
    yield LinearLayer(f"{path}.linear_2", f"{original}.{ends[1]}", (width, width))


def layer_slots(layers: Iterable[LinearLayer], *, has_bias: bool = True) -> Iterator[Slot]:
    """Yield the slots of the weights and biases of layers; without `has_bias` none of them has one."""
    for layer in layers:
        for end in ("weight", "bias") if has_bias and layer.bias else ("weight",):
            yield Slot(
                f"{layer.path}.{end}",
                f"{layer.original}.{end}",
                piece=layer.piece,
                shares=layer.shares,
                swapped=layer.swapped,
            )


def original_targets(
    layers: Iterable[LinearLayer], *, in_comfy: Callable[[str], str] | None = None
) -> tuple[list[AdapterTarget], list[AdapterTarget]]:
    """Return the layers that adapter files can change, and the matrices of the original layout that differ from ours.

    kohya's trainers name layers as the original layout does, and so do files here. A change that cannot be written for
    such a matrix is named by its own layer, as SimpleTuner names it. `in_comfy` returns ComfyUI's path from the
    original one, for a model whose layers have another there. Raises ValueError for more layers than any model has.
    """

    def of_files(original: str) -> dict[Layout, str]:
        return {"original": original} if in_comfy is None else {"original": original, "comfyui": in_comfy(original)}

    targets: list[AdapterTarget] = []
    matrices: list[AdapterTarget] = []
    for original, group in groupby(limit_layers(layers), key=lambda layer: layer.original):
        members = list(group)
        if len(members) == 1 and not members[0].swapped:
            [layer] = members
            paths = {"diffusers": layer.path, **of_files(original)}
            targets.append(AdapterTarget("transformer", layer.path, layer.shape, paths, "lora_unet_", "original"))
            continue
        pieces = tuple(
            AdapterTarget("transformer", layer.path, layer.shape, {"diffusers": layer.path}, "lycoris_", "diffusers")
            for layer in members
        )
        targets += pieces
        shape = (sum(layer.shape[0] for layer in members), *members[0].shape[1:])
        swapped = members[0].swapped
        matrices.append(
            AdapterTarget("transformer", original, shape, of_files(original), "lora_unet_", "original", pieces, swapped)
        )
    return targets, matrices


def targets_from(layers_of: LayersOf, *, in_comfy: Callable[[str], str] | None = None) -> TargetsOf:
    """Return the `adapter_targets` of a model whose transformer has these layers, as `original_targets` names them."""
    return lambda configs: AdapterTargets.of(*original_targets(layers_of(configs["transformer"]), in_comfy=in_comfy))


def diffusers_targets_from(layers_of: LayersOf) -> TargetsOf:
    """Return the `adapter_targets` of a model whose transformer has these layers, if all files have diffusers' names.

    They raise ValueError for more layers than any model has.
    """
    return lambda configs: AdapterTargets.of(
        AdapterTarget("transformer", layer.path, layer.shape, {"diffusers": layer.path}, "lora_unet_", "diffusers")
        for layer in limit_layers(layers_of(configs["transformer"]))
    )
