"""Several reward models as one reward, the weighted sum of their scores; and how diverse and colourful images are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from modules.rewards.protocol import Reward, RewardContext
from modules.rewards.registry import REWARDS
from modules.rewards.settings import Scorer
from modules.system.devices import tensor_on
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.problem import agree


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of B images: the weighted sum, and each reward model's unweighted score by its name.

    A score that is NaN or infinite is missing: it is NaN in `by_name`, and the reward model is left out of the image's
    sum; without any score the sum is NaN.
    """

    total_B: torch.Tensor
    by_name: Mapping[str, torch.Tensor]

    @property
    def complete_totals(self) -> torch.Tensor:
        """The sums, NaN for images that some reward model could not score: a sum without one of its scores has
        another scale, so such images must not be compared with others.
        """
        if not self.by_name:
            return self.total_B
        is_missing_B = torch.stack(list(self.by_name.values())).isnan().any(dim=0)
        return torch.where(is_missing_B, torch.nan, self.total_B)


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
                f"The training method needs rewards with a gradient to the images, which {', '.join(blind)} "
                f"{agree(len(blind), 'does')} not have.",
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
            by_name = {
                model.name: _without_infinities(model.reward(images_B3PP, prompts)) for model in self.reward_models
            }
            scores_JB = torch.stack([by_name[model.name] for model in self.reward_models])
            weights_J = tensor_on([model.weight for model in self.reward_models], scores_JB.device)
            is_missing_JB = scores_JB.isnan()
            total_B = (torch.where(is_missing_JB, 0.0, scores_JB) * weights_J[:, None]).sum(dim=0)
            return Scores(torch.where(is_missing_JB.all(dim=0), torch.nan, total_B), by_name)


def _without_infinities(scores_B: torch.Tensor) -> torch.Tensor:
    """Return scores in float32, those that are infinite as missing."""
    scores_B = scores_B.float()
    return torch.where(scores_B.isfinite(), scores_B, torch.nan)


def build_rewards(scorers: Sequence[Scorer], context: RewardContext) -> CompositeReward:
    """Load the reward models of the settings; missing files are downloaded where that is allowed.

    Raises DarkroomError where there are no reward models, or one cannot be loaded.
    """
    if not scorers:
        raise DarkroomError(
            "No reward model is enabled.", advice="Add a reward model on the Rewards page and enable it."
        )
    named = zip(_unique_names(scorers), scorers, strict=True)
    return CompositeReward(tuple(RewardModel(name, _build_reward(s, context), s.weight) for name, s in named))


def _build_reward(scorer: Scorer, context: RewardContext) -> Reward:
    reward: Reward = load_factory(REWARDS[scorer.kind].factory)(scorer, context)
    return reward


def _unique_names(scorers: Sequence[Scorer]) -> Iterator[str]:
    """Yield a name per reward model: its kind, numbered from the second of a kind on."""
    seen: Counter[str] = Counter()
    for scorer in scorers:
        seen[scorer.kind] += 1
        yield scorer.kind if seen[scorer.kind] == 1 else f"{scorer.kind}_{seen[scorer.kind]}"


def diversity(images: Sequence[npt.NDArray[np.uint8]], prompts: Sequence[Hashable]) -> float | None:
    """Return the root mean squared distance of two images of the same prompt, over all pairs; None without a pair.

    The distance is the root mean squared difference of pixel values, 0 to 1. Only images of the same shape are
    compared. Computed without going through the pairs: their mean squared distance is
    `2 / (K - 1) sum_k |x_k - mean|^2`.
    """
    groups: dict[Hashable, list[npt.NDArray[np.uint8]]] = {}
    for image, prompt in zip(images, prompts, strict=True):
        groups.setdefault((prompt, image.shape), []).append(image)
    squares, num_pairs = 0.0, 0
    for group in groups.values():
        count = len(group)
        if count < 2:
            continue
        mean = np.mean(group, axis=0, dtype=np.float64)
        spread = sum(float(np.mean((image - mean) ** 2)) for image in group) / 255**2
        pairs = count * (count - 1) // 2
        squares += pairs * 2 / (count - 1) * spread
        num_pairs += pairs
    return float(np.sqrt(squares / num_pairs)) if num_pairs else None


def saturation(images: Sequence[npt.NDArray[np.uint8]]) -> float | None:
    """Return how colourful images (H, W, 3) are: the mean difference of a pixel's largest and smallest channel, from 0
    (gray) to 1; None without images.
    """
    spreads = [float((image.max(axis=2) - image.min(axis=2)).mean()) / 255 for image in images]
    return float(np.mean(spreads)) if spreads else None
