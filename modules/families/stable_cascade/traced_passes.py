"""The forward pass of Stable Cascade's prior, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass


def prior_passes(prior: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of the prior."""
    config = prior.config

    def inputs(size: PassSize) -> dict[str, Any]:
        return {
            "sample": torch.empty(size.batch, *spec.latents.shape(size.width_px, size.height_px)),
            "timestep_ratio": torch.empty(size.batch, dtype=torch.float32),
            "clip_text_pooled": torch.empty(size.batch, 1, config.clip_text_pooled_in_channels),
            "clip_text": torch.empty(size.batch, size.tokens, config.clip_text_in_channels),
            "clip_img": torch.empty(size.batch, 1, config.clip_image_in_channels),
        }

    return {"forward": TracedPass(prior, inputs, frozenset({"clip_text", "clip_text_pooled"}))}
