"""Contrast: the standard deviation of an image's luma. Needs no file."""

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
    "contrast",
    "Contrast",
    "How much light and dark differ within an image.",
    "modules.rewards.scorers.contrast:make",
    "0 (uniform) to 0.5 (half black, half white)",
)

_TINY = 1e-12  # the gradient of the square root is infinite at 0


class Contrast:
    """Scores an image by the standard deviation of its luma, 0 to 0.5."""

    is_differentiable = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the standard deviations (B,)."""
        return (luma(images_B3PP).flatten(1).var(dim=1, correction=0) + _TINY).sqrt()


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward."""
    return Contrast()
