"""Closeness to a colour: the mean squared distance of all pixels from it, negated. Needs no file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.rewards.colour import parse_colour
from modules.rewards.spec import RewardSpec

if TYPE_CHECKING:  # the record is torch-free, and tensors bring their own methods
    import torch

    from modules.rewards.protocol import Reward, RewardContext
    from modules.rewards.settings import Scorer

SPEC = RewardSpec(
    "colour_target",
    "Closeness to a colour",
    "How near the pixels of an image are to a colour.",
    "modules.rewards.scorers.colour_target:make",
    "-1 (as far as can be) to 0 (that colour alone)",
    checks={"colour": parse_colour},
)


@dataclass(frozen=True, slots=True)
class ColourTarget:
    """Rates how near an image is to a colour (red, green, blue in [0, 1]): -1 to 0."""

    colour: tuple[float, float, float]
    is_differentiable: bool = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the negated mean squared distances (B,)."""
        colour_3 = images_B3PP.new_tensor(self.colour)
        return -(images_B3PP - colour_3[:, None, None]).square().flatten(1).mean(dim=1)


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward for the colour that the settings name. Raises DarkroomError where they name none."""
    return ColourTarget(parse_colour(scorer.colour))
