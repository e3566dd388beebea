"""PickScore: a CLIP model taught by people's picks among two pictures of a caption (Kirstain et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from modules.config.sections.reward import Scorer
from modules.rewards.clip_model import ClipEyes, read_clip
from modules.rewards.download import files_of
from modules.rewards.protocol import Reward, RewardContext


@dataclass(frozen=True, slots=True)
class PickScore:
    """Rates a picture by the scaled cosine with its caption; 18 to 24 for what models paint."""

    eyes: ClipEyes
    name: str = "pickscore"
    is_differentiable: bool = True

    def __call__(self, pictures_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,): `exp(logit_scale) cos`, as the authors give them."""
        return self.eyes.scale * self.eyes.cosines(pictures_B3PP, prompts)


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward, loaded. Raises DarkroomError where its model is missing."""
    return PickScore(ClipEyes(read_clip(files_of(scorer, context)["file"]), context))
