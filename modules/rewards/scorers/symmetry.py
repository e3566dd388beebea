"""Symmetry: the mean squared difference between an image and its mirror image, negated. Needs no file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.rewards.spec import RewardSpec

if TYPE_CHECKING:  # the record is torch-free; the code only calls methods of tensors
    import torch

    from modules.rewards.protocol import Reward, RewardContext
    from modules.rewards.settings import Scorer

SPEC = RewardSpec(
    "symmetry",
    "Symmetry",
    "How similar the left and the right half of an image are.",
    "modules.rewards.scorers.symmetry:make",
    "-1 (opposite) to 0 (mirrored)",
)


class Symmetry:
    """Scores how similar the left and the right half of an image are: -1 to 0."""

    is_differentiable = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the negated mean squared differences (B,)."""
        return -(images_B3PP - images_B3PP.flip(-1)).square().flatten(1).mean(dim=1)


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward."""
    return Symmetry()
