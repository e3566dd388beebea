"""Advantages: how much better an image was scored than others, in standard deviations.

    A = (r - mean) / std

over all images of a rollout, over the latest images of the same prompt (DDPO, Black et al. 2023), or over the group of
images sampled for one prompt (GRPO, Shao et al. 2024; Flow-GRPO, Liu et al. 2025).
Standard deviations are the population's. Images without a score (NaN or infinite) are left out of the statistics
and have an advantage of 0, so nothing is learned from them. Where all scores are equal, up to the rounding of float32,
every advantage is 0. Everything is computed in float64 on the CPU.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Scores = Sequence[float]
Estimator = Callable[[str, Scores], list[float]]
"""Returns the advantages of the scores of a reward model, which is given by its name."""

Combination = Literal["advantages", "rewards"]

_ROUNDING = 1e-6  # a few times the rounding of float32, relative to the scores


def batch_advantages(scores: Scores) -> list[float]:
    """Return each score's advantage over all of them."""
    return _normalize(scores, scores)


def group_advantages(scores: Scores, groups: Sequence[int]) -> list[float]:
    """Return each score's advantage over the scores of its group; `groups` has the number of each image's group.

    It does not change if all scores of a group are multiplied by a positive number, or if a number is added to them.
    Raises ValueError for a group of one image, which has nothing to be compared with.
    """
    advantages = [0.0] * len(scores)
    for members in _indices_by_group(groups).values():
        if len(members) < 2:
            raise ValueError("A group needs at least two images: an advantage compares the images of a prompt.")
        group_scores = [scores[i] for i in members]
        for index, advantage in zip(members, _normalize(group_scores, group_scores), strict=True):
            advantages[index] = advantage
    return advantages


@dataclass(eq=False)
class PromptTracker:
    """Advantages over the latest scores of the same prompt, of this rollout and of earlier ones.

    The latest `size` scores of each prompt are kept. A prompt with fewer than `min_count` of them is compared with all
    images of the rollout.
    """

    size: int
    min_count: int
    kept: dict[str, dict[str, deque[float]]] = field(default_factory=dict)

    def advantages(self, name: str, scores: Scores, prompts: Sequence[str]) -> list[float]:
        """Add the scores of a reward model to their prompts' histories, and return each one's advantage."""
        by_prompt = self.kept.setdefault(name, {})
        for score, prompt in zip(scores, prompts, strict=True):
            if math.isfinite(score):
                by_prompt.setdefault(prompt, deque(maxlen=self.size)).append(score)
        return [
            _normalize([score], self._reference_scores(by_prompt.get(prompt), scores))[0]
            for score, prompt in zip(scores, prompts, strict=True)
        ]

    def _reference_scores(self, latest: deque[float] | None, scores: Scores) -> Scores:
        return scores if latest is None or len(latest) < self.min_count else list(latest)

    def state_dict(self) -> dict[str, Any]:
        """Return the scores, JSON-safe."""
        return {name: {p: list(latest) for p, latest in prompts.items()} for name, prompts in self.kept.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the scores."""
        self.kept = {
            name: {p: deque(latest, maxlen=self.size) for p, latest in prompts.items()}
            for name, prompts in state.items()
        }


def combine_advantages(
    scores: Mapping[str, Scores],
    weights: Mapping[str, float],
    estimate: Estimator,
    *,
    combination: Combination,
    limit: float | None = None,
) -> list[float]:
    """Return each image's advantage from the scores of several reward models by name, between -limit and limit.

    "advantages": the weighted sum of each reward model's advantages, so that their scales do not matter (DanceGRPO,
    Xue et al. 2025). "rewards": the advantages of the weighted sum of the scores; an image that some reward model could
    not score has none.
    """
    if combination == "advantages":
        parts = [[weights[name] * a for a in estimate(name, of_model)] for name, of_model in scores.items()]
        advantages = [math.fsum(row) for row in zip(*parts, strict=True)]
    else:
        weighted = ([weights[name] * score for score in of_model] for name, of_model in scores.items())
        rows = zip(*weighted, strict=True)
        advantages = estimate("sum", [sum(row) for row in rows])
    return advantages if limit is None else [min(max(a, -limit), limit) for a in advantages]


def untrained_share(advantages: Sequence[float], groups: Sequence[int]) -> float:
    """Return the share of groups from which nothing is learned: all of their advantages are 0."""
    members = _indices_by_group(groups).values()
    return sum(not any(advantages[i] for i in indices) for indices in members) / len(members)


def _indices_by_group(groups: Sequence[int]) -> dict[int, list[int]]:
    """Return the numbers of the images of each group."""
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    return members


def _normalize(scores: Scores, compared: Scores) -> list[float]:
    """Return the advantages of `scores` over the `compared` scores; 0 for a score that is not finite."""
    finite = [score for score in compared if math.isfinite(score)]
    if _are_equal(finite):
        return [0.0] * len(scores)
    mean = math.fsum(finite) / len(finite)
    std = math.sqrt(math.fsum((s - mean) ** 2 for s in finite) / len(finite))
    return [(s - mean) / std if math.isfinite(s) else 0.0 for s in scores]


def _are_equal(finite: Scores) -> bool:
    """Return whether scores differ by no more than rounding; also for fewer than two of them."""
    return len(finite) < 2 or max(finite) - min(finite) <= _ROUNDING * max(map(abs, finite))
