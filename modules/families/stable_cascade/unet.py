"""The network of the prior (stage C) and of the decoder (stage B), with an exact embedding of the time."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from diffusers.models.unets import unet_stable_cascade

from modules.families.parts.effnet_autoencoder import without_dropout
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.spec import FamilySpec


class StableCascadeUNet(unet_stable_cascade.StableCascadeUNet):  # type: ignore[misc]  # diffusers has no types
    """diffusers' module, with the same configs and tensors, which embeds the time in float32 whatever its dtype.

    Its largest angle is 10,000 times the time, which bfloat16 rounds by up to 20: diffusers' pipelines do that, the
    authors' code does not. It has no dropout.
    """

    # diffusers reads the names of the config in the signature.
    @wraps(unet_stable_cascade.StableCascadeUNet.__init__)  # type: ignore[misc]  # diffusers has no types
    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        without_dropout(self)

    def get_timestep_ratio_embedding(self, timestep_ratio: torch.Tensor, max_positions: int = 10000) -> Any:
        """Return the embedding (B, D) of times in [0, 1], in the dtype of the weights."""
        embedding: torch.Tensor = super().get_timestep_ratio_embedding(timestep_ratio.float(), max_positions)
        return embedding.to(next(self.parameters()).dtype)


# The forward pass of Stable Cascade's prior, for the memory estimate to trace.


def prior_passes(prior: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of the prior."""
    config = prior.config

    def inputs(size: InputSize) -> dict[str, Any]:
        return {
            "sample": size.latents(size.channels),
            "timestep_ratio": size.times(),
            "clip_text_pooled": torch.empty(size.batch, 1, config.clip_text_pooled_in_channels),
            "clip_text": size.text(config.clip_text_in_channels),
            "clip_img": torch.empty(size.batch, 1, config.clip_image_in_channels),
        }

    return forward_pass(prior, spec, inputs, text=["clip_text", "clip_text_pooled"])
