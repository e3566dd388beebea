"""LoHa: its settings and its record (Hyeon-Woo et al. 2022). Not built yet."""

from __future__ import annotations

from typing import Literal

from modules.adapters.settings import (
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
from modules.adapters.spec import AdapterSpec
from modules.settings.field import Section


class Loha(Section):
    """LoHa (Hyeon-Woo et al. 2022): the elementwise product of two low-rank products."""

    name: Literal["loha"] = "loha"
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


LOHA = AdapterSpec("LoHa", Loha)
