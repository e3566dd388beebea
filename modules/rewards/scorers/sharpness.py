"""Sharpness: the variance of an image's Laplacian (Pech-Pacheco et al. 2000). Needs no file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.rewards.luma import luma
from modules.rewards.spec import RewardSpec

if TYPE_CHECKING:  # the record is torch-free; the code only calls methods of tensors
    import torch

    from modules.rewards.protocol import Reward, RewardContext
    from modules.rewards.settings import Scorer

SPEC = RewardSpec(
    "sharpness",
    "Sharpness",
    "How much fine detail an image has. Noise counts as detail.",
    "modules.rewards.scorers.sharpness:make",
    "0 (uniform) and up",
)


class Sharpness:
    """Scores how much each pixel's luma differs from its four neighbours'. Noise counts as sharpness too."""

    is_differentiable = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the variances (B,) of `up + down + left + right - 4 centre` over all pixels with four neighbours."""
        luma_BPP = luma(images_B3PP)
        beside_BPP = luma_BPP[:, 1:-1, :-2] + luma_BPP[:, 1:-1, 2:]
        above_BPP = luma_BPP[:, :-2, 1:-1] + luma_BPP[:, 2:, 1:-1]
        laplacian_BPP = beside_BPP + above_BPP - 4 * luma_BPP[:, 1:-1, 1:-1]
        return laplacian_BPP.flatten(1).var(dim=1, correction=0)


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward."""
    return Sharpness()
