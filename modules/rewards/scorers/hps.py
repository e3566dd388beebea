"""HPS v2: a CLIP ViT-H taught by people's rankings of pictures of one caption (Wu et al. 2023).

Published in OpenCLIP's layout. The authors pad a picture to a square; here its middle is looked at, as AlignProp does
(Prabhudesai et al. 2023), which is the same for square pictures. v2 and v2.1 give numbers that do not compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from modules.config.sections.reward import Scorer
from modules.rewards.clip_model import ClipEyes
from modules.rewards.download import files_of
from modules.rewards.open_clip import read_open_clip
from modules.rewards.protocol import Reward, RewardContext


@dataclass(frozen=True, slots=True)
class HumanPreference:
    """Rates a picture by the cosine with its caption, 0.2 to 0.4."""

    eyes: ClipEyes
    name: str = "hps"
    is_differentiable: bool = True

    def __call__(self, pictures_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the cosines (B,)."""
        return self.eyes.cosines(pictures_B3PP, prompts)


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward, loaded. Raises DarkroomError where its file is missing."""
    return HumanPreference(ClipEyes(read_open_clip(files_of(scorer, context)["file"]), context))
