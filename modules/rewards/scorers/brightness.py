"""Brightness: the mean of all values. Needs no file; the plainest reward there is, and a good first try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.rewards.spec import RewardSpec

if TYPE_CHECKING:  # the record is torch-free, and tensors bring their own methods
    import torch

    from modules.rewards.protocol import Reward, RewardContext
    from modules.rewards.settings import Scorer

SPEC = RewardSpec(
    "brightness",
    "Brightness",
    "How light an image is on average.",
    "modules.rewards.scorers.brightness:make",
    "0 (black) to 1 (white)",
)


class Brightness:
    """Rates how light an image is, 0 to 1."""

    is_differentiable = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the mean values (B,)."""
        return images_B3PP.flatten(1).mean(dim=1)


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward."""
    return Brightness()
