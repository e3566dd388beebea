"""Brightness: the mean of all pixel values. Needs no file; the simplest reward, and a good first test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.rewards.spec import RewardSpec

if TYPE_CHECKING:  # the record is torch-free; the code only calls methods of tensors
    import torch

    from modules.rewards.protocol import Reward, RewardContext
    from modules.rewards.settings import Scorer

SPEC = RewardSpec(
    "brightness",
    "Brightness",
    "The mean brightness of an image.",
    "modules.rewards.scorers.brightness:make",
    "0 (black) to 1 (white)",
)


class Brightness:
    """Scores how bright an image is, 0 to 1."""

    is_differentiable = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the mean values (B,)."""
        return images_B3PP.flatten(1).mean(dim=1)


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward."""
    return Brightness()
