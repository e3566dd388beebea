"""DINOv2 as an image encoder: it learned from images alone, so it compares subjects and shapes rather than meaning.

The preprocessing is the published models': the shorter side to 256 px, the middle 224 px, ImageNet's
normalisation. The embedding is the class token after the last layer norm.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn import functional
from transformers.models.dinov2.modeling_dinov2 import Dinov2Model

from modules.rewards.models.pretrained import read_pretrained, square_input
from modules.rewards.protocol import RewardContext

_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)
_RESIZED_PX, _SIDE_PX = 256, 224


def dino_input(images_B3PP: torch.Tensor) -> torch.Tensor:
    """Return images in [0, 1] as the input of DINOv2."""
    return square_input(images_B3PP, side_px=_SIDE_PX, resized_px=_RESIZED_PX, mean=_MEAN, std=_STD)


class DinoImageEncoder:
    """DINOv2 in float32 on the training device, for scores without a gradient."""

    def __init__(self, model: Dinov2Model, context: RewardContext) -> None:
        """Wrap and freeze a model."""
        self.model = model.float().eval().requires_grad_(False)
        context.place(self.model)

    @torch.no_grad()
    def images(self, images_B3PP: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (B, D) of images in [0, 1], normalised to length 1."""
        tokens_BLD = self.model(pixel_values=dino_input(images_B3PP)).last_hidden_state
        return functional.normalize(tokens_BLD[:, 0], dim=-1)


def make_dino(folder: Path, context: RewardContext) -> DinoImageEncoder:
    """Return the encoder of a folder in transformers' layout, loaded. Raises DarkroomError without a whole model."""
    return DinoImageEncoder(read_pretrained(Dinov2Model, folder, "DINOv2 model"), context)
