"""The forward pass of Ideogram 4's transformers, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of an `Ideogram4Transformer2DModel` with text."""
    config, patch = transformer.config, spec.latents.packed

    def inputs(size: PassSize) -> dict[str, Any]:
        _, height, width = spec.latents.shape(size.width_px, size.height_px)
        num_patches = (height // patch) * (width // patch)
        return {
            "hidden_states": torch.empty(size.batch, num_patches, config.in_channels),
            "timestep": torch.empty(size.batch),
            "position_ids": torch.empty(1, size.tokens + num_patches, 3, dtype=torch.long),
            "encoder_hidden_states": torch.empty(size.batch, size.tokens, config.llm_features_dim),
            "encoder_attention_mask": torch.empty(size.batch, size.tokens, dtype=torch.bool),
        }

    return {"forward": TracedPass(transformer, inputs, frozenset({"encoder_hidden_states"}))}
