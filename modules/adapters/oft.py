"""OFT: its settings and its record (Qiu et al. 2023). Not built yet."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.adapters.settings import Bundle, Dropout, LayerNames, LayerPatterns, Layers, StartFrom, WeightType
from modules.adapters.spec import AdapterSpec
from modules.settings.field import Section, Setting


class Oft(Section):
    """OFT (Qiu et al. 2023): turns the outputs of each layer in blocks and keeps their lengths."""

    name: Literal["oft"] = "oft"
    dropout: Dropout = 0.0
    start_from: StartFrom = ""
    layers: Layers = "attention_mlp"
    custom_layers: LayerNames = ""
    layers_regex: LayerPatterns = False
    dtype: WeightType = "float32"
    bundle_embeddings: Bundle = True
    block_size: Annotated[
        int, Ge(1), Le(4096), Setting("Block size", "How many outputs turn together.", group="Adapter")
    ] = 32
    block_share: Annotated[
        bool, Setting("Share blocks", "All blocks of a layer turn alike.", group="Adapter", level="advanced")
    ] = False
    scaled: Annotated[
        bool, Setting("Scaled", "Learns a length for each output, too.", group="Adapter", level="advanced")
    ] = False


OFT = AdapterSpec("OFT", Oft)
