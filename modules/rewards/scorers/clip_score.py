"""CLIP score: how well a picture fits its caption (Radford et al. 2021; Hessel et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from modules.config.sections.reward import Scorer
from modules.rewards.clip_model import ClipEyes, read_clip
from modules.rewards.download import files_of
from modules.rewards.protocol import Reward, RewardContext


@dataclass(frozen=True, slots=True)
class ClipScore:
    """Rates a picture by the cosine with its caption, 0.2 to 0.4 where they fit."""

    eyes: ClipEyes
    name: str = "clip_score"
    is_differentiable: bool = True

    def __call__(self, pictures_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the cosines (B,)."""
        return self.eyes.cosines(pictures_B3PP, prompts)


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward, loaded. Raises DarkroomError where its model is missing."""
    return ClipScore(ClipEyes(read_clip(files_of(scorer, context)["file"]), context))
