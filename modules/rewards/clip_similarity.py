"""What the judges that compare a picture with its caption share: CLIP's cosine of the two, times a factor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from modules.rewards.clip_model import ClipEyes


@dataclass(frozen=True, slots=True)
class CaptionFit:
    """Rates a picture by `factor` times the cosine with its caption."""

    eyes: ClipEyes
    factor: float = 1.0
    is_differentiable: bool = True

    def __call__(self, pictures_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the ratings (B,)."""
        return self.factor * self.eyes.cosines(pictures_B3PP, prompts)
