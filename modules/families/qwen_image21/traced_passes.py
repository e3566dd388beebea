"""The forward pass of Qwen-Image 2.1, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `QwenImage21Transformer2DModel`, for prompts of equal lengths."""

    def inputs(size: PassSize) -> dict[str, Any]:
        return {
            "hidden_states": torch.empty(size.batch, *spec.latents.shape(size.width_px, size.height_px)),
            "encoder_hidden_states": torch.empty(size.batch, size.tokens, transformer.config.context_in_dim),
            "timestep": torch.empty(size.batch, dtype=torch.float32),
        }

    return {"forward": TracedPass(transformer, inputs, frozenset({"encoder_hidden_states"}))}
