"""DDPO: policy gradients whose rewards are compared over the rollout, or over the latest images of the same prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modules.config.sections.training import Training
from modules.objectives.methods.ddpo import Ddpo
from modules.rewards.advantage import PromptTracker, batch_advantages
from modules.rewards.composite import CompositeReward
from modules.sampling.step_selection import RandomShare
from trainer.methods.policy_gradient import Comparison, PolicyGradient, build_policy_gradient
from trainer.methods.rollouts import SampledGroup


@dataclass(frozen=True, slots=True)
class RolloutComparison:
    """Compares an image with all images of the rollout."""

    def advantages(self, name: str, scores: Sequence[float], sampled: SampledGroup) -> list[float]:
        """Return the advantages over all of them."""
        return batch_advantages(scores)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""


@dataclass(frozen=True, slots=True)
class PromptComparison:
    """Compares an image with the latest images of the same prompt."""

    tracker: PromptTracker

    def advantages(self, name: str, scores: Sequence[float], sampled: SampledGroup) -> list[float]:
        """Return the advantages over the tracked rewards, to which these are added."""
        return self.tracker.advantages(name, scores, sampled.captions)

    def state_dict(self) -> dict[str, Any]:
        """Return the tracked rewards."""
        return self.tracker.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the tracked rewards."""
        self.tracker.load_state_dict(state)


def build(chosen: Ddpo, training: Training, reward: CompositeReward | None) -> PolicyGradient:
    """Return the method from its settings."""
    return build_policy_gradient(
        chosen,
        reward,
        _comparison(chosen),
        samples_per_prompt=chosen.samples_per_prompt,
        selection=RandomShare(chosen.timestep_share),
    )


def _comparison(chosen: Ddpo) -> Callable[[], Comparison]:
    if chosen.advantage == "batch":
        return RolloutComparison
    return lambda: PromptComparison(PromptTracker(chosen.tracker_size, chosen.tracker_min_count))
