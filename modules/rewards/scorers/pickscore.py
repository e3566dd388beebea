"""PickScore: a CLIP model taught by people's picks among two images of a caption (Kirstain et al. 2023)."""

from __future__ import annotations

from modules.config.sections.reward import Scorer
from modules.rewards.clip_model import ClipImageEncoder, read_clip
from modules.rewards.clip_similarity import CaptionFit
from modules.rewards.download import files_of
from modules.rewards.protocol import Reward, RewardContext


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward, `exp(logit_scale) cos` as the authors give it. Raises DarkroomError where its model is
    missing.
    """
    image_encoder = ClipImageEncoder(read_clip(files_of(scorer, context)["file"]), context)
    return CaptionFit(image_encoder, image_encoder.scale)
