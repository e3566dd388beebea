"""OFT: its settings and its record (Qiu et al. 2023). Not built yet."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.adapters.settings import (
    Bundle,
    Dropout,
    LayerNames,
    LayerPatterns,
    Layers,
    OtherLayers,
    StartFrom,
    WeightType,
)
from modules.adapters.spec import AdapterSpec
from modules.settings.field import Section, Setting


class Oft(Section):
    """OFT (Qiu et al. 2023): rotates the outputs of each layer in blocks and keeps their norms."""

    name: Literal["oft"] = "oft"
    dropout: Dropout = 0.0
    start_from: StartFrom = ""
    other_layers: OtherLayers = "keep"
    layers: Layers = "attention_mlp"
    custom_layers: LayerNames = ""
    layers_regex: LayerPatterns = False
    dtype: WeightType = "float32"
    bundle_embeddings: Bundle = True
    block_size: Annotated[
        int, Ge(1), Le(4096), Setting("Block size", "How many outputs are rotated together.", group="Adapter")
    ] = 32
    block_share: Annotated[
        bool, Setting("Share blocks", "All blocks of a layer share one rotation.", group="Adapter", level="advanced")
    ] = False
    scaled: Annotated[
        bool, Setting("Scaled", "Also trains a scale for each output.", group="Adapter", level="advanced")
    ] = False


OFT = AdapterSpec("OFT", Oft)
