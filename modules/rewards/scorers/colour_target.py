"""Target colour: the negated mean squared distance of all pixels from a colour. Needs no file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.rewards.colour import parse_colour
from modules.rewards.spec import RewardSpec

if TYPE_CHECKING:  # the record is torch-free; the code only calls methods of tensors
    import torch

    from modules.rewards.protocol import Reward, RewardContext
    from modules.rewards.settings import Scorer

SPEC = RewardSpec(
    "colour_target",
    "Target colour",
    "How close the pixels of an image are to a colour.",
    "modules.rewards.scorers.colour_target:make",
    "-1 (farthest) to 0 (only that colour)",
    checks={"colour": parse_colour},
)


@dataclass(frozen=True, slots=True)
class ColourTarget:
    """Scores how close an image is to a colour (red, green, blue in [0, 1]): -1 to 0."""

    colour: tuple[float, float, float]
    is_differentiable: bool = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the negated mean squared distances (B,)."""
        colour_3 = images_B3PP.new_tensor(self.colour)
        return -(images_B3PP - colour_3[:, None, None]).square().flatten(1).mean(dim=1)


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward for the colour in the settings. Raises DarkroomError where it is not valid."""
    return ColourTarget(parse_colour(scorer.colour))
