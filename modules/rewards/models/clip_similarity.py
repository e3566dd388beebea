"""The reward models based on CLIP similarity: the cosine of image and caption, times a factor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from modules.rewards.clip_model import ClipImageEncoder, read_clip
from modules.rewards.download import files_of
from modules.rewards.open_clip import read_open_clip
from modules.rewards.protocol import Reward, RewardContext
from modules.rewards.settings import Scorer


@dataclass(frozen=True, slots=True)
class ClipSimilarity:
    """Scores an image by `factor` times its cosine similarity to its caption."""

    image_encoder: ClipImageEncoder
    factor: float = 1.0
    is_differentiable: bool = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,)."""
        return self.factor * self.image_encoder.cosines(images_B3PP, prompts)


def clip_score(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the CLIP score, the plain cosine, loaded. Raises DarkroomError where its model is missing."""
    return ClipSimilarity(ClipImageEncoder(read_clip(files_of(scorer, context)["file"]), context))


def pickscore(scorer: Scorer, context: RewardContext) -> Reward:
    """Return PickScore, `exp(logit_scale) cos` as the authors define it. Raises DarkroomError without its model."""
    image_encoder = ClipImageEncoder(read_clip(files_of(scorer, context)["file"]), context)
    return ClipSimilarity(image_encoder, image_encoder.scale)


def hps(scorer: Scorer, context: RewardContext) -> Reward:
    """Return HPS v2, the plain cosine, loaded. Raises DarkroomError where its file is missing."""
    return ClipSimilarity(ClipImageEncoder(read_open_clip(files_of(scorer, context)["file"]), context, fit="pad"))
