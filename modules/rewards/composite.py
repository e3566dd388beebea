"""Several reward models as one reward: the weighted sum of their scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from modules.rewards.protocol import Reward, RewardContext
from modules.rewards.registry import REWARDS
from modules.rewards.settings import Scorer
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of B images: the weighted sum, and each reward model's unweighted score by its name.

    A reward model without a score for an image (NaN) is left out of its sum; without any score the sum is NaN.
    """

    total_B: torch.Tensor
    by_name: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class RewardModel:
    """A reward with its unique name for logs and its weight."""

    name: str
    reward: Reward
    weight: float


@dataclass(frozen=True, slots=True)
class CompositeReward:
    """The reward models of a run; without any, no image has a score."""

    reward_models: tuple[RewardModel, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The reward models' names, in the config's order."""
        return tuple(reward_model.name for reward_model in self.reward_models)

    @property
    def is_differentiable(self) -> bool:
        """Whether a gradient passes through every reward model."""
        return all(reward_model.reward.is_differentiable for reward_model in self.reward_models)

    def require_gradient(self) -> None:
        """Raise DarkroomError, with the reward models' names, where some are not differentiable."""
        blind = [reward_model.name for reward_model in self.reward_models if not reward_model.reward.is_differentiable]
        if blind:
            raise DarkroomError(
                f"Not differentiable: {', '.join(blind)}. The training method needs differentiable rewards.",
                advice="Remove it from the reward models, or choose it as the held-out reward, which is only logged.",
            )

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> Scores:
        """Return the scores of images in [0, 1] with their prompts.

        Computed in float32 even inside autocast: reward models depend on small differences.
        """
        if not self.reward_models:
            return Scores(torch.full((len(images_B3PP),), torch.nan, device=images_B3PP.device), {})
        with torch.autocast(images_B3PP.device.type, enabled=False):
            images_B3PP = images_B3PP.float()
            said = {reward_model.name: reward_model.reward(images_B3PP, prompts) for reward_model in self.reward_models}
            ratings_JB = torch.stack([said[reward_model.name].float() for reward_model in self.reward_models])
            weights_J = torch.tensor(
                [reward_model.weight for reward_model in self.reward_models], device=ratings_JB.device
            )
            is_missing_JB = ratings_JB.isnan()
            total_B = (torch.where(is_missing_JB, 0.0, ratings_JB) * weights_J[:, None]).sum(dim=0)
            return Scores(torch.where(is_missing_JB.all(dim=0), torch.nan, total_B), said)


def build_rewards(scorers: Sequence[Scorer], context: RewardContext) -> CompositeReward:
    """Load the reward models of the settings; missing files are downloaded where that is allowed.

    Raises DarkroomError where there are no reward models, or one cannot be loaded.
    """
    if not scorers:
        raise DarkroomError(
            "No reward model is enabled.", advice="Add a reward model on the Rewards page and enable it."
        )
    made = [(name, _made(s, context), s.weight) for name, s in zip(_names(scorers), scorers, strict=True)]
    return CompositeReward(tuple(RewardModel(*reward_model) for reward_model in made))


def _made(scorer: Scorer, context: RewardContext) -> Reward:
    reward: Reward = load_factory(REWARDS[scorer.kind].factory)(scorer, context)
    return reward


def _names(scorers: Sequence[Scorer]) -> Iterator[str]:
    """Yield a name per reward model: its kind, numbered from the second of a kind on."""
    seen: Counter[str] = Counter()
    for scorer in scorers:
        seen[scorer.kind] += 1
        yield scorer.kind if seen[scorer.kind] == 1 else f"{scorer.kind}_{seen[scorer.kind]}"
