"""The forward pass of Qwen-Image, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `QwenImageTransformer2DModel`, for prompts of equal lengths."""
    positions = transformer.pos_embed
    # It keeps the positions of each size, so that the pass at the first size would have other operations.
    positions._compute_video_freqs = partial(type(positions)._compute_video_freqs.__wrapped__, positions)
    config, patch = transformer.config, spec.latents.packed

    def inputs(size: PassSize) -> dict[str, Any]:
        _, height, width = spec.latents.shape(size.width_px, size.height_px)
        rows, columns = height // patch, width // patch
        return {
            "hidden_states": torch.empty(size.batch, rows * columns, config.in_channels),
            "encoder_hidden_states": torch.empty(size.batch, size.tokens, config.joint_attention_dim),
            "timestep": torch.empty(size.batch, dtype=torch.float32),
            "img_shapes": [[(1, rows, columns)]] * size.batch,
        }

    return {"forward": TracedPass(transformer, inputs, frozenset({"encoder_hidden_states"}))}
