"""The forward pass of Chroma1, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `ChromaTransformer2DModel`, with the mask that prompts of several lengths need."""
    config, patch = transformer.config, spec.latents.packed

    def inputs(size: PassSize) -> dict[str, Any]:
        _, height, width = spec.latents.shape(size.width_px, size.height_px)
        num_patches = (height // patch) * (width // patch)
        return {
            "hidden_states": torch.empty(size.batch, num_patches, config.in_channels),
            "encoder_hidden_states": torch.empty(size.batch, size.tokens, config.joint_attention_dim),
            "timestep": torch.empty(size.batch, dtype=torch.float32),
            "img_ids": torch.empty(num_patches, 3, dtype=torch.float32),
            "txt_ids": torch.empty(size.tokens, 3, dtype=torch.float32),
            "attention_mask": torch.empty(size.batch, size.tokens + num_patches, dtype=torch.bool),
        }

    return {"forward": TracedPass(transformer, inputs, frozenset({"encoder_hidden_states"}))}
