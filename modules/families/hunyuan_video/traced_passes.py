"""The forward pass of HunyuanVideo, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `HunyuanVideoTransformer3DModel`, for one frame."""
    config = transformer.config

    def inputs(size: PassSize) -> dict[str, Any]:
        _, height, width = spec.latents.shape(size.width_px, size.height_px)
        made = {
            "hidden_states": torch.empty(size.batch, config.in_channels, 1, height, width),
            "timestep": torch.empty(size.batch, dtype=torch.float32),
            "encoder_hidden_states": torch.empty(size.batch, size.tokens, config.text_embed_dim),
            "encoder_attention_mask": torch.empty(size.batch, size.tokens, dtype=torch.bool),
            "pooled_projections": torch.empty(size.batch, config.pooled_projection_dim),
        }
        if config.guidance_embeds:
            made["guidance"] = torch.empty(size.batch, dtype=torch.float32)
        return made

    return {"forward": TracedPass(transformer, inputs, frozenset({"encoder_hidden_states", "pooled_projections"}))}
