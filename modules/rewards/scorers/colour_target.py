"""Closeness to a colour: the mean squared distance of all pixels from it, negated. Needs no file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from modules.config.sections.reward import Scorer
from modules.rewards.colour import parse_colour
from modules.rewards.protocol import Reward, RewardContext


@dataclass(frozen=True, slots=True)
class ColourTarget:
    """Rates how near an image is to a colour (red, green, blue in [0, 1]): -1 to 0."""

    colour: tuple[float, float, float]
    is_differentiable: bool = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the negated mean squared distances (B,)."""
        colour_3 = torch.tensor(self.colour, dtype=images_B3PP.dtype, device=images_B3PP.device)
        return -(images_B3PP - colour_3[:, None, None]).square().flatten(1).mean(dim=1)


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward for the colour that the settings name. Raises DarkroomError where they name none."""
    return ColourTarget(parse_colour(scorer.colour))
