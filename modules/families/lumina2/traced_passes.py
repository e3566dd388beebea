"""The forward pass of Lumina-Image 2.0, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.lumina2.positions import set_positions
from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `Lumina2Transformer2DModel`, which goes through its images one by one."""
    config, positions = transformer.config, set_positions(transformer)

    def inputs(size: PassSize) -> dict[str, Any]:
        positions.lengths = [size.tokens]
        _, height, width = spec.latents.shape(size.width_px, size.height_px)
        return {
            "hidden_states": torch.empty(1, config.in_channels, height, width),
            "timestep": torch.empty(1, dtype=torch.float32),
            "encoder_hidden_states": torch.empty(1, size.tokens, config.cap_feat_dim),
            "encoder_attention_mask": torch.ones(1, size.tokens, dtype=torch.bool),
        }

    return {"forward": TracedPass(transformer, inputs, frozenset({"encoder_hidden_states"}), is_per_image=True)}
