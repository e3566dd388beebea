"""LoRA: its settings and its record (Hu et al. 2021). Torch-free; the layers are in `lora_layers`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from modules.adapters.max_norm import MaxNorm
from modules.adapters.settings import (
    AN_ADAPTER,
    Alpha,
    Bundle,
    Dropout,
    LayerNames,
    LayerPatterns,
    Layers,
    OtherLayers,
    Rank,
    StartFrom,
    WeightType,
)
from modules.adapters.spec import AdapterSpec, NetworkFacts, Shape
from modules.formats.adapter_names import DORA_SCALE, DOWN, MID, UP
from modules.settings.field import Section, Setting, When

if TYPE_CHECKING:
    from modules.memory.tape import Array
    from modules.memory.walk import Walk


class Lora(Section):
    """LoRA (Hu et al. 2021): a low-rank product beside each chosen layer."""

    name: Literal["lora"] = "lora"
    rank: Rank = 16
    alpha: Alpha = 16.0
    dropout: Dropout = 0.0
    start_from: StartFrom = ""
    other_layers: OtherLayers = "keep"
    layers: Layers = "attention_mlp"
    custom_layers: LayerNames = ""
    layers_regex: LayerPatterns = False
    dtype: WeightType = "float32"
    bundle_embeddings: Bundle = True
    max_norm: MaxNorm = None
    decompose: Annotated[
        bool,
        Setting(
            "DoRA",
            "Trains magnitude and direction of the weights separately (Liu et al. 2024).",
            group="Adapter",
            level="advanced",
            applies_when=AN_ADAPTER,
            not_yet="refused",
        ),
    ] = False
    decompose_norm_eps: Annotated[
        bool,
        Setting(
            "DoRA norm epsilon",
            "Adds a tiny number to the norm to avoid division by zero.",
            group="Adapter",
            level="advanced",
            applies_when=When("decompose", (True,)),
            not_yet="refused",
        ),
    ] = True
    decompose_output_axis: Annotated[
        bool,
        Setting(
            "DoRA on output axis",
            "Computes the magnitude along a layer's outputs instead of its inputs.",
            group="Adapter",
            level="advanced",
            applies_when=When("decompose", (True,)),
            not_yet="refused",
        ),
    ] = False


def walk(settings: Lora, walk: Walk, path: str, weight: Shape, x: Array, out: Array) -> Array:
    """Run a LoRA on the estimate's tape: A of (rank, in, ...), then B of (out, rank, 1, ...)."""
    out_channels, in_channels, *kernel = weight
    down = {"weight": (settings.rank, in_channels, *kernel)}
    up = {"weight": (out_channels, settings.rank, *(1 for _ in kernel))}
    low = walk.adapter_product(f"{path}.lora_A", x, down, channels=settings.rank, out=out)
    return walk.adapter_product(f"{path}.lora_B", low, up, channels=out_channels, out=out)


def network(settings: Lora) -> NetworkFacts:
    """Return kohya's metadata of a LoRA."""
    return NetworkFacts("networks.lora", settings.rank, settings.alpha)


def trainable(names: Collection[str]) -> frozenset[str]:
    """Return the factors of a layer in a file that are trained: a LoRA's, unless it has DoRA's magnitude."""
    own = frozenset(names) & {DOWN, UP, MID}
    return own if {DOWN, UP} <= own and DORA_SCALE not in names else frozenset()


def settings_as(settings: Lora, shapes: Mapping[str, Shape]) -> Lora:
    """Return the settings with the rank that a layer has in a file, from the shapes of its factors."""
    return settings.model_copy(update={"rank": shapes[DOWN][0]})


LORA = AdapterSpec(
    "LoRA",
    Lora,
    factory="modules.adapters.lora_layers:LORA_KIND",
    forms=("kohya", "diffusers"),
    walk=walk,
    network=network,
    trainable=trainable,
    settings_as=settings_as,
    float8_factors=frozenset({DOWN, UP, MID}),
)
