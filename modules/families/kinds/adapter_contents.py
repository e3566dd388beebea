"""The layers of an adapter file as the programs that load it tell them apart, for the table `consumers`. Torch-free."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from modules.families.kinds.layer_traits import Trait, traits_of
from modules.families.kinds.lora_model import targets_of
from modules.families.kinds.stored_alphas import Alpha, alphas_in_metadata, alphas_of
from modules.families.registry import published
from modules.formats.adapter_forms import Naming
from modules.formats.adapter_names import (
    ALPHA,
    BUNDLED_EMBEDDING,
    DIFFERENCE_FACTORS,
    DORA_SCALE,
    FACTORS,
    MID,
    Shape,
    lacking_factor,
    layer_and_factor,
    type_of,
)
from modules.formats.adapter_targets import AdapterTarget, kohya_naming_of, naming_of
from modules.formats.checkpoint_header import CheckpointHeader, read_scalars

Sort = Literal[
    "LoRA",
    "Tucker LoRA",
    "DoRA",
    "LoHa",
    "LoKr",
    "OFT",
    "BOFT",
    "diagonal OFT",
    "OFTv2",
    "GLoRA",
    "norm",
    "difference",
    "incomplete",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class FileLayer:
    """A layer of an adapter file: its naming, the layer of the model it changes, and the sort of its change.

    `tensors` are the names of its tensors in the file. `part` and `path` are diffusers' and empty for a layer that the
    model does not have. `kohya_naming` is that of kohya's trainers for this layer of this model. `alpha` compares its
    alpha with those of the other layers of its part. `traits` are what else some programs stumble over.
    """

    name: str
    naming: Naming
    kohya_naming: Naming
    part: str
    path: str
    is_norm: bool
    sort: Sort
    tensors: tuple[str, ...]
    alpha: Alpha = "usual"
    traits: frozenset[Trait] = frozenset()

    @property
    def is_usual(self) -> bool:
        """Whether the layer is named as kohya's trainers name it for this model."""
        return self.naming == self.kohya_naming


@dataclass(frozen=True, slots=True)
class AdapterContents:
    """An adapter file: its layers, and the tensors of its bundled embeddings."""

    layers: tuple[FileLayer, ...]
    embeddings: tuple[str, ...] = ()

    @property
    def is_mixed(self) -> bool:
        """Whether it has both namings of the UNet in kohya's files."""
        return {"kohya, SGM names", "kohya, diffusers names"} <= {layer.naming for layer in self.layers}

    def has(self, trait: Trait) -> bool:
        """Whether any of its layers has a trait."""
        return any(trait in layer.traits for layer in self.layers)

    def tensors(self) -> Iterator[str]:
        """Yield the names of all tensors."""
        for layer in self.layers:
            yield from layer.tensors
        yield from self.embeddings


@dataclass(slots=True)
class _Found:
    """The tensors of a layer by name, and the shapes of its factors."""

    tensors: list[str] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)


def read_contents(header: CheckpointHeader, model: str) -> AdapterContents:
    """Return the contents of an adapter file for a published model."""
    found = _by_layer(header)
    targets = targets_of(published(model), header.metadata)
    places = {name: targets.find(name, layer.shapes) if targets else None for name, layer in found.items()}
    alphas = alphas_of(header, {name: (t.part, found[name].shapes) for name, t in places.items() if t})
    placed = {name: (t.part, t.path, found[name].shapes) for name, t in places.items() if t}
    alphas = alphas_in_metadata(header, placed) | alphas
    values = read_scalars(header, [f"{name}.{ALPHA}" for name, layer in found.items() if ALPHA in layer.shapes])
    is_inpainting = "inpainting" in header.metadata.get("modelspec.architecture", "")
    layers = []
    for name, layer in found.items():
        own = _layer(name, layer, places[name], alphas.get(name, "usual"))
        traits = traits_of(name, layer.shapes, places[name], values.get(f"{name}.{ALPHA}"), is_inpainting=is_inpainting)
        layers.append(replace(own, traits=traits))
    return AdapterContents(tuple(layers), tuple(n for n in header.shapes if n.startswith(BUNDLED_EMBEDDING)))


def num_layers(names: Iterable[str]) -> int:
    """Return how many layers the tensors of an adapter file are of, as `read_contents` counts them."""
    return len(
        {_layer_name(name, layer_and_factor(name)[0]) for name in names if not name.startswith(BUNDLED_EMBEDDING)}
    )


def _layer_name(name: str, layer: str) -> str:
    """Return the name of a tensor's layer; that of a tensor that is no factor of an adapter is what it belongs to."""
    return layer or name.rpartition(".")[0] or name


def _by_layer(header: CheckpointHeader) -> Mapping[str, _Found]:
    found: dict[str, _Found] = defaultdict(_Found)
    for name, shape in header.shapes.items():
        if name.startswith(BUNDLED_EMBEDDING):
            continue
        layer, factor = layer_and_factor(name)
        entry = found[_layer_name(name, layer)]
        entry.tensors.append(name)
        entry.shapes[factor] = shape
    return found


def _layer(name: str, found: _Found, target: AdapterTarget | None, alpha: Alpha) -> FileLayer:
    tensors, sort = tuple(found.tensors), _sort(frozenset(found.shapes), len(found.shapes.get("oft_blocks", ())))
    if target is None:
        return FileLayer(name, "unknown", "unknown", "", "", False, sort, tensors)
    naming, kohya = naming_of(name, target, tensors), kohya_naming_of(target)
    return FileLayer(name, naming, kohya, target.part, target.path, target.is_norm, sort, tensors, alpha)


@cache
def _sort(factors: frozenset[str], num_axes: int) -> Sort:
    factors -= {ALPHA}
    if "" in factors or not factors & FACTORS:
        return "unknown"
    if lacking_factor(factors):
        return "incomplete"
    if factors & DIFFERENCE_FACTORS:
        return "norm" if factors & {"w_norm", "b_norm"} else "difference"
    match type_of(factors):
        case "OFT":
            return _sort_of_oft(factors, num_axes)
        case "LoHa":
            return "LoHa"
        case "LoKr":
            return "LoKr"
        case "GLoRA":
            return "GLoRA"
        case "IA3":
            return "unknown"
    if MID in factors:
        return "Tucker LoRA"
    return "DoRA" if DORA_SCALE in factors else "LoRA"


def _sort_of_oft(factors: frozenset[str], num_axes: int) -> Sort:
    if "oft_blocks" in factors:
        return "BOFT" if num_axes == 4 else "OFT"
    return "diagonal OFT" if "oft_diag" in factors else "OFTv2"
