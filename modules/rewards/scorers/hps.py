"""HPS v2: a CLIP ViT-H taught by people's rankings of images of one caption (Wu et al. 2023).

Published in OpenCLIP's layout; what is no square is padded, as its authors do. v2 and v2.1 give numbers that do not
compare.
"""

from __future__ import annotations

from modules.config.sections.reward import Scorer
from modules.rewards.clip_model import ClipImageEncoder
from modules.rewards.clip_similarity import CaptionFit
from modules.rewards.download import files_of
from modules.rewards.open_clip import read_open_clip
from modules.rewards.protocol import Reward, RewardContext


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward, the plain cosine, loaded. Raises DarkroomError where its file is missing."""
    return CaptionFit(ClipImageEncoder(read_open_clip(files_of(scorer, context)["file"]), context, fit="pad"))
