"""Contrast: how far the lightness of an image's pixels spreads. Needs no file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.rewards.luma import luma
from modules.rewards.spec import RewardSpec

if TYPE_CHECKING:  # the record is torch-free, and tensors bring their own methods
    import torch

    from modules.rewards.protocol import Reward, RewardContext
    from modules.rewards.settings import Scorer

SPEC = RewardSpec(
    "contrast",
    "Contrast",
    "How much light and dark differ within an image.",
    "modules.rewards.scorers.contrast:make",
    "0 (one grey) to 0.5 (half black, half white)",
)

_TINY = 1e-12  # the root of nothing has no finite slope


class Contrast:
    """Rates the standard deviation of an image's luma, 0 to 0.5."""

    is_differentiable = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the standard deviations (B,)."""
        return (luma(images_B3PP).flatten(1).var(dim=1, correction=0) + _TINY).sqrt()


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward."""
    return Contrast()
