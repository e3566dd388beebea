"""The forward pass of PixArt, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.pixart.spec import has_size_conditions
from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `PixArtTransformer2DModel`, with the mask that prompts of several lengths need."""
    config = transformer.config

    def inputs(size: PassSize) -> dict[str, Any]:
        _, height, width = spec.latents.shape(size.width_px, size.height_px)
        made: dict[str, Any] = {
            "hidden_states": torch.empty(size.batch, config.in_channels, height, width),
            "encoder_hidden_states": torch.empty(size.batch, size.tokens, config.caption_channels),
            "encoder_attention_mask": torch.empty(size.batch, size.tokens, dtype=torch.bool),
            "timestep": torch.empty(size.batch, dtype=torch.float32),
        }
        if has_size_conditions(config):
            made["added_cond_kwargs"] = {
                "resolution": torch.empty(size.batch, 2, dtype=torch.float32),
                "aspect_ratio": torch.empty(size.batch, 1, dtype=torch.float32),
            }
        return made

    return {"forward": TracedPass(transformer, inputs, frozenset({"encoder_hidden_states"}))}
