"""The forward passes of Anima's transformer and text conditioner, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `CosmosTransformer3DModel` on images."""

    def inputs(size: PassSize) -> dict[str, Any]:
        channels, height, width = spec.latents.shape(size.width_px, size.height_px)
        return {
            "hidden_states": torch.empty(size.batch, channels, 1, height, width),
            "timestep": torch.empty(size.batch, dtype=torch.float32),
            "encoder_hidden_states": torch.empty(size.batch, size.tokens, transformer.config.text_embed_dim),
            "padding_mask": torch.empty(1, 1, size.height_px, size.width_px),
        }

    return {"forward": TracedPass(transformer, inputs, frozenset({"encoder_hidden_states"}))}


def conditioner_passes(conditioner: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of an `AnimaTextConditioner`, with the masks that a batch needs."""

    def inputs(size: PassSize) -> dict[str, Any]:
        mask = torch.empty(size.batch, size.tokens, dtype=torch.long)
        return {
            "source_hidden_states": torch.empty(size.batch, size.tokens, conditioner.config.source_dim),
            "target_input_ids": torch.empty(size.batch, size.tokens, dtype=torch.long),
            "target_attention_mask": mask,
            "source_attention_mask": mask.clone(),
        }

    return {"forward": TracedPass(conditioner, inputs, frozenset({"source_hidden_states"}))}
