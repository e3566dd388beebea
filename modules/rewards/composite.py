"""Several reward models as one reward: the weighted sum of what they say."""

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
    """What the reward models say of B images: the weighted sum, and each reward model's own rating by its name, not
    weighted.

    A reward model that has no score for an image (NaN) does not count for it; where none has one the sum is NaN.
    """

    total_B: torch.Tensor
    by_name: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class RewardModel:
    """A reward with the name it is reported under, unique among its fellows, and its weight."""

    name: str
    reward: Reward
    weight: float


@dataclass(frozen=True, slots=True)
class CompositeReward:
    """The reward models of a run."""

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
        """Raise DarkroomError where no gradient passes through a reward model, naming it."""
        blind = [reward_model.name for reward_model in self.reward_models if not reward_model.reward.is_differentiable]
        if blind:
            raise DarkroomError(
                f"No gradient passes through the reward {', '.join(blind)}, which the training method needs.",
                advice="Remove it from the reward models, or hold it out: it is then watched and not trained on.",
            )

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> Scores:
        """Return what the reward models say of images in [0, 1] and their prompts.

        In float32 also inside autocast: the differences that matter to a reward model are small.
        """
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
    """Return the reward models of settings, loaded, with what they need downloaded where it may be.

    Raises DarkroomError where there is none, or one cannot be had.
    """
    if not scorers:
        raise DarkroomError(
            "There is no reward model to learn from.", advice="Add one to the reward models, and switch it on."
        )
    made = [(name, _made(s, context), s.weight) for name, s in zip(_names(scorers), scorers, strict=True)]
    return CompositeReward(tuple(RewardModel(*reward_model) for reward_model in made))


def _made(scorer: Scorer, context: RewardContext) -> Reward:
    reward: Reward = load_factory(REWARDS[scorer.kind].factory)(scorer, context)
    return reward


def _names(scorers: Sequence[Scorer]) -> Iterator[str]:
    """Yield a name per reward model: its kind, counted from the second of a kind on."""
    seen: Counter[str] = Counter()
    for scorer in scorers:
        seen[scorer.kind] += 1
        yield scorer.kind if seen[scorer.kind] == 1 else f"{scorer.kind}_{seen[scorer.kind]}"
