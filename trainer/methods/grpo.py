"""GRPO: policy gradients whose rewards are compared within the group of images of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modules.config.sections.training import Training
from modules.objectives.methods.grpo import Grpo
from modules.rewards.advantage import group_advantages
from modules.rewards.composite import CompositeReward
from modules.sampling.step_selection import RandomShare, SlidingWindow, StepSelection
from trainer.methods.policy_gradient import PolicyGradient, build_policy_gradient
from trainer.methods.rollouts import SampledGroup


@dataclass(frozen=True, slots=True)
class GroupComparison:
    """Compares an image with the others of its prompt in the rollout."""

    def advantages(self, name: str, scores: Sequence[float], sampled: SampledGroup) -> list[float]:
        """Return the advantages over the images of each group."""
        return group_advantages(scores, sampled.prompt_numbers)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""


def build(chosen: Grpo, training: Training, reward: CompositeReward | None) -> PolicyGradient:
    """Return the method from its settings."""
    return build_policy_gradient(
        chosen,
        reward,
        GroupComparison,
        samples_per_prompt=chosen.group_size,
        selection=_selection(chosen),
        shares_noise=chosen.first_noise == "shared",
        best_of=0 if chosen.best_of == chosen.group_size else chosen.best_of,
    )


def _selection(chosen: Grpo) -> StepSelection:
    if chosen.timesteps == "window":
        return SlidingWindow(chosen.window_size, chosen.window_every)
    return RandomShare(chosen.timestep_share)
