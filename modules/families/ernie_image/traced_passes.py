"""The forward pass of ERNIE-Image, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of an `ErnieImageTransformer2DModel`, which always masks the padding."""
    transformer.pos_embed.forward = partial(_positions, transformer.pos_embed)
    config, patch = transformer.config, spec.latents.packed

    def inputs(size: PassSize) -> dict[str, Any]:
        _, height, width = spec.latents.shape(size.width_px, size.height_px)
        return {
            "hidden_states": torch.empty(size.batch, config.in_channels, height // patch, width // patch),
            "timestep": torch.empty(size.batch, dtype=torch.float32),
            "text_bth": torch.empty(size.batch, size.tokens, config.text_in_dim),
            "text_lens": torch.empty(size.batch, dtype=torch.int64),
        }

    return {"forward": TracedPass(transformer, inputs, frozenset({"text_bth"}))}


def _positions(embedding: Any, ids_BL3: torch.Tensor) -> torch.Tensor:
    """Return the angles (B, L, 1, D) of an `ErnieImageEmbedND3` without switching autocast off: meta has none."""
    angles = [
        ids_BL3[..., axis, None] * embedding.theta ** -(torch.arange(0, size, 2, device=ids_BL3.device) / size)
        for axis, size in enumerate(embedding.axes_dim)
    ]
    half_BL1C = torch.cat(angles, dim=-1).unsqueeze(2)
    return torch.stack([half_BL1C, half_BL1C], dim=-1).flatten(-2)
