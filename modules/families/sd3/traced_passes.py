"""The forward pass of Stable Diffusion 3, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.parts.part_classes import CLIP_CHUNK_TOKENS
from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of an `SD3Transformer2DModel`; the tokens of a size are T5's, and CLIP's are added."""
    config = transformer.config

    def inputs(size: PassSize) -> dict[str, Any]:
        _, height, width = spec.latents.shape(size.width_px, size.height_px)
        tokens = size.tokens + CLIP_CHUNK_TOKENS + 2
        return {
            "hidden_states": torch.empty(size.batch, config.in_channels, height, width),
            "encoder_hidden_states": torch.empty(size.batch, tokens, config.joint_attention_dim),
            "pooled_projections": torch.empty(size.batch, config.pooled_projection_dim),
            "timestep": torch.empty(size.batch, dtype=torch.float32),
        }

    return {"forward": TracedPass(transformer, inputs, frozenset({"encoder_hidden_states", "pooled_projections"}))}
