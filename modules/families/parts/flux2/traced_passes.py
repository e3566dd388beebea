"""The forward pass of FLUX.2's transformer, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `Flux2Transformer2DModel`."""
    config, patch = transformer.config, spec.latents.packed

    def inputs(size: PassSize) -> dict[str, Any]:
        _, height, width = spec.latents.shape(size.width_px, size.height_px)
        num_patches = (height // patch) * (width // patch)
        made = {
            "hidden_states": torch.empty(size.batch, num_patches, config.in_channels),
            "encoder_hidden_states": torch.empty(size.batch, size.tokens, config.joint_attention_dim),
            "timestep": torch.empty(size.batch, dtype=torch.float32),
            "img_ids": torch.empty(num_patches, 4, dtype=torch.float32),
            "txt_ids": torch.empty(size.tokens, 4, dtype=torch.float32),
        }
        if config.guidance_embeds:
            made["guidance"] = torch.empty(size.batch, dtype=torch.float32)
        return made

    return {"forward": TracedPass(transformer, inputs, frozenset({"encoder_hidden_states"}))}
