"""CLIP score: how well an image fits its caption (Radford et al. 2021; Hessel et al. 2021)."""

from __future__ import annotations

from modules.config.sections.reward import Scorer
from modules.rewards.clip_model import ClipImageEncoder, read_clip
from modules.rewards.clip_similarity import CaptionFit
from modules.rewards.download import files_of
from modules.rewards.protocol import Reward, RewardContext


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward, the plain cosine, loaded. Raises DarkroomError where its model is missing."""
    return CaptionFit(ClipImageEncoder(read_clip(files_of(scorer, context)["file"]), context))
