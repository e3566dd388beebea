"""LoKr: its settings and its record (Yeh et al. 2023). Not built yet."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.adapters.settings import (
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
from modules.adapters.spec import AdapterSpec
from modules.settings.field import Section, Setting


class Lokr(Section):
    """LoKr (Yeh et al. 2024): a Kronecker product of a small and a low-rank matrix."""

    name: Literal["lokr"] = "lokr"
    rank: Rank = 16
    alpha: Alpha = 16.0
    dropout: Dropout = 0.0
    start_from: StartFrom = ""
    layers: Layers = "attention_mlp"
    custom_layers: LayerNames = ""
    layers_regex: LayerPatterns = False
    dtype: WeightType = "float32"
    bundle_embeddings: Bundle = True
    factor: Annotated[
        int, Ge(-1), Le(1024), Setting("Factor", "The size of the small matrix; -1 finds one.", group="Adapter")
    ] = -1
    decompose_both: Annotated[
        bool, Setting("Decompose both", "Makes both matrices low-rank products.", group="Adapter", level="advanced")
    ] = False
    use_tucker: Annotated[
        bool, Setting("Tucker form", "For convolutions of more than one pixel.", group="Adapter", level="advanced")
    ] = False
    full_matrix: Annotated[
        bool, Setting("Full matrix", "Makes neither matrix a low-rank product.", group="Adapter", level="advanced")
    ] = False
    decompose: Annotated[
        bool, Setting("DoRA", "Learns length and direction of the weights apart.", group="Adapter", level="advanced")
    ] = False
    decompose_output_axis: Annotated[
        bool,
        Setting("DoRA: along the outputs", "Takes the length along the outputs.", group="Adapter", level="advanced"),
    ] = True
    vec_trick: Annotated[
        bool, Setting("Vec trick", "Multiplies without building the product.", group="Adapter", level="advanced")
    ] = True


LOKR = AdapterSpec("LoKr", Lokr)
