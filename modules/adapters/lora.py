"""LoRA: its settings and its record (Hu et al. 2021). Torch-free; the layers are in `lora_layers`."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from modules.adapters.settings import (
    AN_ADAPTER,
    Alpha,
    Bundle,
    Dropout,
    LayerNames,
    LayerPatterns,
    Layers,
    Rank,
    StartFrom,
    WeightType,
)
from modules.adapters.spec import AdapterProduct, AdapterSpec, LayerCost, LayerShape, NetworkFacts
from modules.settings.field import Section, Setting, When


class Lora(Section):
    """LoRA (Hu et al. 2021): a low-rank product beside each chosen layer."""

    name: Literal["lora"] = "lora"
    rank: Rank = 16
    alpha: Alpha = 16.0
    dropout: Dropout = 0.0
    start_from: StartFrom = ""
    layers: Layers = "attention_mlp"
    custom_layers: LayerNames = ""
    layers_regex: LayerPatterns = False
    dtype: WeightType = "float32"
    bundle_embeddings: Bundle = True
    decompose: Annotated[
        bool,
        Setting(
            "DoRA",
            "Learns length and direction of the weights apart (Liu et al. 2024).",
            group="Adapter",
            level="advanced",
            applies_when=AN_ADAPTER,
            not_yet="refused",
        ),
    ] = False
    decompose_norm_eps: Annotated[
        bool,
        Setting(
            "DoRA: guard the norm",
            "Adds the smallest number to the norm, so that nothing is divided by zero.",
            group="Adapter",
            level="advanced",
            applies_when=When("decompose", (True,)),
            not_yet="refused",
        ),
    ] = True
    decompose_output_axis: Annotated[
        bool,
        Setting(
            "DoRA: along the outputs",
            "Takes the length along the outputs of a layer and not along its inputs.",
            group="Adapter",
            level="advanced",
            applies_when=When("decompose", (True,)),
            not_yet="refused",
        ),
    ] = False


def layer_cost(settings: Lora, layer: LayerShape) -> LayerCost:
    """Return what a LoRA adds to a layer: A of (rank, in, ...) and B of (out, rank, 1, ...), one after the other."""
    down = (settings.rank, layer.in_channels, *layer.kernel)
    up = (layer.out_channels, settings.rank, *(1 for _ in layer.kernel))
    return LayerCost(
        {"lora_A.weight": down, "lora_B.weight": up},
        (
            AdapterProduct("lora_A", settings.rank, math.prod(down)),
            AdapterProduct("lora_B", layer.out_channels, math.prod(up)),
        ),
    )


def network(settings: Lora) -> NetworkFacts:
    """Return what kohya's metadata say of a LoRA."""
    return NetworkFacts("networks.lora", settings.rank, settings.alpha)


LORA = AdapterSpec(
    "LoRA",
    Lora,
    factory="modules.adapters.lora_layers:LORA_KIND",
    forms=("kohya", "diffusers"),
    layer_cost=layer_cost,
    network=network,
)
