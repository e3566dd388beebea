"""The forward pass of Z-Image, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def transformer_passes(transformer: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `ZImageTransformer2DModel`, which goes through its images one by one."""

    def inputs(size: PassSize) -> dict[str, Any]:
        channels, height, width = spec.latents.shape(size.width_px, size.height_px)
        return {
            "x": [torch.empty(channels, 1, height, width)],
            "t": torch.empty(1, dtype=torch.float32),
            "cap_feats": [torch.empty(size.tokens, transformer.config.cap_feat_dim)],
        }

    return {"forward": TracedPass(transformer, inputs, frozenset({"cap_feats"}), is_per_image=True)}
