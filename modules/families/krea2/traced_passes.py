"""The forward pass of Krea 2, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from diffusers.models.transformers.transformer_krea2 import Krea2RMSNorm

from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `Krea2Transformer2DModel`, with the mask that prompts of several lengths need.

    The recording includes that its attention repeats each head of keys and values for the queries that share it.
    """
    for norm in (module for module in transformer.modules() if isinstance(module, Krea2RMSNorm)):
        norm.forward = partial(_normalize, norm)
    config, patch = transformer.config, spec.latents.packed

    def inputs(size: PassSize) -> dict[str, Any]:
        _, height, width = spec.latents.shape(size.width_px, size.height_px)
        num_patches = (height // patch) * (width // patch)
        return {
            "hidden_states": torch.empty(size.batch, num_patches, config.in_channels),
            "encoder_hidden_states": torch.empty(
                size.batch, size.tokens, config.num_text_layers, config.text_hidden_dim
            ),
            "timestep": torch.empty(size.batch, dtype=torch.float32),
            "position_ids": torch.empty(size.tokens + num_patches, 3, dtype=torch.float32),
            "encoder_attention_mask": torch.empty(size.batch, size.tokens, dtype=torch.bool),
        }

    return {"forward": TracedPass(transformer, inputs, frozenset({"encoder_hidden_states"}))}


def _normalize(norm: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """Return the output of a `Krea2RMSNorm`, whose weights always stay in float32."""
    weight = norm.weight.float() + 1.0
    normalized: torch.Tensor = torch.nn.functional.rms_norm(hidden_states.float(), (norm.dim,), weight, norm.eps)
    return normalized.to(hidden_states.dtype)
