"""The part of a rollout that online DPO trains on: the latents of the best and the worst image of each prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from modules.rewards.advantage import Combination, combined_advantages, group_advantages
from modules.rewards.composite import CompositeReward
from trainer.methods.rollout_images import Extremes
from trainer.methods.rollouts import SampledGroup

_SMALLEST_GAP = 1e-6  # of two advantages, in standard deviations

Place = tuple[int, int]
"""Where a prompt is: the number of its batch in the accumulation group, and its row there."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """The finished latents of a rollout, (K, C, H, W) for each prompt in order, on the offload device.

    `requests` are the names of the choices that a person is asked to make, one for each prompt.
    """

    first_step: int
    latents_KCHW: tuple[torch.Tensor, ...]
    metrics: Mapping[str, float]
    requests: tuple[str, ...] = ()

    def to_state(self) -> dict[str, Any]:
        """Return it as tensors and JSON-safe values, for a run that is resumed before all choices are made."""
        tensors = {f"candidates.{number}": latents for number, latents in enumerate(self.latents_KCHW)}
        values = {"first_step": self.first_step, "requests": list(self.requests), "metrics": dict(self.metrics)}
        return {"candidates": values, **tensors}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Candidates:
        """Return the candidates of a state."""
        values = state["candidates"]
        latents = tuple(state[f"candidates.{number}"] for number in range(len(values["requests"])))
        return cls(values["first_step"], latents, values["metrics"], tuple(values["requests"]))


@dataclass(frozen=True, eq=False)
class PairRollout:
    """A rollout that is being trained on: its pairs by place, each of shape (2, C, H, W), the chosen one first.

    Without any choice it is silent: then it has one pair of any two images, which is trained with a weight of 0.
    """

    first_step: int
    pairs_2CHW: Mapping[Place, torch.Tensor]
    metrics: Mapping[str, float]
    is_silent: bool = field(default=False)

    def places_of(self, update: int, pairs_per_update: int) -> list[list[Place]]:
        """Return the places of the pairs of an optimizer step on it, by batch; 0 pairs per update are all of them.

        Otherwise the steps train on them in turn.
        """
        places = list(self.pairs_2CHW)
        count = pairs_per_update or len(places)
        if count < len(places):
            first = update * count
            places = sorted(places[(first + i) % len(places)] for i in range(count))
        by_batch: dict[int, list[Place]] = {}
        for place in places:
            by_batch.setdefault(place[0], []).append(place)
        return list(by_batch.values())

    def to_state(self) -> dict[str, Any]:
        """Return it as tensors and JSON-safe values, for a run that is resumed between its optimizer steps."""
        tensors = {f"pair.{batch}.{row}": pair for (batch, row), pair in self.pairs_2CHW.items()}
        values = {"first_step": self.first_step, "places": [list(place) for place in self.pairs_2CHW]}
        return {"rollout": {**values, "metrics": dict(self.metrics), "is_silent": self.is_silent}, **tensors}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PairRollout:
        """Return the rollout of a state."""
        values = state["rollout"]
        pairs = {(batch, row): state[f"pair.{batch}.{row}"] for batch, row in values["places"]}
        return cls(values["first_step"], pairs, values["metrics"], values["is_silent"])


def places(batch_sizes: Sequence[int]) -> Iterator[Place]:
    """Yield the places of the prompts of an accumulation group, in order."""
    yield from ((batch, row) for batch, size in enumerate(batch_sizes) for row in range(size))


def best_and_worst(sampled: SampledGroup, reward: CompositeReward, combination: Combination) -> list[Extremes | None]:
    """Return the numbers of the best and the worst image of each prompt; None if its rewards are equal, or missing.

    Several reward models are combined as for policy gradients.
    """
    prompts = sampled.prompt_numbers
    advantages = combined_advantages(
        sampled.scores,
        {model.name: model.weight for model in reward.reward_models},
        lambda name, scores: group_advantages(scores, prompts),
        combination=combination,
    )
    by_prompt: dict[int, list[float]] = {}
    for prompt, advantage in zip(prompts, advantages, strict=True):
        by_prompt.setdefault(prompt, []).append(advantage)
    return [extremes_of(own) for _, own in sorted(by_prompt.items())]


def extremes_of(values: Sequence[float]) -> Extremes | None:
    """Return the numbers of the highest and the lowest value, the first of equal ones; None if all are equal."""
    best, worst = values.index(max(values)), values.index(min(values))
    return (best, worst) if values[best] - values[worst] > _SMALLEST_GAP else None


def paired(candidates: Candidates, chosen: Sequence[Extremes | None], batch_sizes: Sequence[int]) -> PairRollout:
    """Return the pairs of candidates by the best and the worst image of each prompt; prompts without are left out."""
    found = zip(places(batch_sizes), candidates.latents_KCHW, chosen, strict=True)
    pairs = {place: latents[list(extremes)] for place, latents, extremes in found if extremes is not None}
    metrics = {**candidates.metrics, "equal_rewards": sum(c is None for c in chosen) / len(chosen)}
    if pairs:
        return PairRollout(candidates.first_step, pairs, metrics)
    return PairRollout(candidates.first_step, {(0, 0): candidates.latents_KCHW[0][:2]}, metrics, is_silent=True)
