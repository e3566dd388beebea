"""What the reward models that compare an image with its caption share: CLIP's cosine of the two, times a factor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from modules.rewards.clip_model import ClipImageEncoder


@dataclass(frozen=True, slots=True)
class CaptionFit:
    """Rates an image by `factor` times the cosine with its caption."""

    image_encoder: ClipImageEncoder
    factor: float = 1.0
    is_differentiable: bool = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the ratings (B,)."""
        return self.factor * self.image_encoder.cosines(images_B3PP, prompts)
