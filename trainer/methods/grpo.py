"""GRPO: policy gradients whose rewards are compared within the group of images of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modules.config.sections.training import Training
from modules.data.buckets import Size
from modules.objectives.methods.grpo import Grpo
from modules.objectives.rollout_fields import size_of
from modules.rewards.advantage import group_advantages
from modules.rewards.composite import CompositeReward
from modules.sampling.rollout import RolloutSettings
from modules.sampling.step_selection import RandomShare, SlidingWindow, StepSelection
from trainer.methods.policy_gradient import PolicyGradient, PolicySettings
from trainer.methods.rollouts import SampledGroup, Sampling


@dataclass(frozen=True, slots=True)
class WithinGroup:
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
    if reward is None:
        raise ValueError("GRPO needs a reward.")
    sides = size_of(chosen.size)
    return PolicyGradient(
        reward,
        Sampling(
            chosen.group_size,
            RolloutSettings(chosen.steps, chosen.guidance, chosen.eta),
            size=Size(*sides) if sides else None,
            shares_noise=chosen.first_noise == "shared",
        ),
        PolicySettings(
            clip_range=chosen.clip_range,
            advantage_clip=chosen.advantage_clip,
            inner_epochs=chosen.inner_epochs,
            kl_weight=chosen.kl_weight,
            reward_sum=chosen.reward_sum,
            selection=_selection(chosen),
            equalize_steps=chosen.equalize_steps,
            best_of=0 if chosen.best_of == chosen.group_size else chosen.best_of,
        ),
        WithinGroup,
    )


def _selection(chosen: Grpo) -> StepSelection:
    if chosen.timesteps == "window":
        return SlidingWindow(chosen.window_size, chosen.window_every)
    return RandomShare(chosen.timestep_share)
