"""diffusers' transformer of HunyuanImage 2.1, with times in float32.

Its embedding of the time has the dtype of the time. In bfloat16 that has a step of 4 at times near 1000, so that the
model would read another noise level than its input has; here the embedding is cast behind the sines and cosines alone,
as in the authors' own code and in diffusers' class of HunyuanVideo.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from diffusers.models.embeddings import TimestepEmbedding
from diffusers.models.transformers import transformer_hunyuanimage as hunyuan_image


class CastTimestepEmbedding(TimestepEmbedding):  # type: ignore[misc]  # diffusers has no types
    """diffusers' module, whose input has the dtype of its weights."""

    def forward(self, sample: torch.Tensor, condition: torch.Tensor | None = None) -> torch.Tensor:
        """Return the embedding (B, D) of the sines and cosines (B, 256) of times."""
        embedding: torch.Tensor = super().forward(sample.to(self.linear_1.weight.dtype), condition)
        return embedding


class HunyuanImageTransformer2DModel(hunyuan_image.HunyuanImageTransformer2DModel):  # type: ignore[misc]
    """diffusers' module, with the same configs and tensors."""

    # diffusers reads the config's keys in the signature of its own.
    @functools.wraps(hunyuan_image.HunyuanImageTransformer2DModel.__init__)  # type: ignore[misc]  # not of constructors
    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **config)
        for module in self.time_guidance_embed.children():
            if isinstance(module, TimestepEmbedding):
                module.__class__ = CastTimestepEmbedding
