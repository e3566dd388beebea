"""The forward pass of FLUX.3, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `Flux3Transformer2DModel`, for prompts that are padded to the same length."""
    norms: Iterable[Any] = (module for module in transformer.modules() if isinstance(module, nn.RMSNorm))
    for norm in norms:
        norm.forward = partial(_normalize, norm)
    config, patch = transformer.config, spec.latents.packed

    def inputs(size: PassSize) -> dict[str, Any]:
        _, height, width = spec.latents.shape(size.width_px, size.height_px)
        num_patches = (height // patch) * (width // patch)
        return {
            "hidden_states": torch.empty(size.batch, num_patches, config.in_channels),
            "encoder_hidden_states": torch.empty(size.batch, size.tokens, config.joint_attention_dim),
            "timestep": torch.empty(size.batch, dtype=torch.float32),
            "img_ids": torch.empty(num_patches, 4, dtype=torch.float32),
            "txt_ids": torch.empty(size.tokens, 4, dtype=torch.float32),
        }

    return {"forward": TracedPass(transformer, inputs, frozenset({"encoder_hidden_states"}))}


def _normalize(norm: Any, states: torch.Tensor) -> torch.Tensor:
    """Return the output of a norm of queries or keys, whose weights and states are always float32."""
    normed: torch.Tensor = nn.functional.rms_norm(states, tuple(norm.normalized_shape), norm.weight.float(), norm.eps)
    return normed
