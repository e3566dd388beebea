"""The part of a rollout that online DPO trains on: the latents of the best and the worst image of each prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from modules.rewards.advantage import Combination, combine_advantages, group_advantages
from modules.rewards.composite import CompositeReward
from trainer.methods.rollout_images import Extremes
from trainer.methods.rollouts import SampledGroup

_SMALLEST_GAP = 1e-6  # of two advantages, in standard deviations

Place = tuple[int, int, int]
"""Of a pair: the number of its batch in the accumulation group, its row there, its denoising step (0 for images)."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """The finished latents of a rollout, (K, C, H, W) for each prompt in order, on the offload device.

    `requests` are the names of the choices that a person is asked to make, one for each prompt; `fingerprint`
    identifies the prompts. `noises_KCHW` are the noises that the images were sampled from, empty if they are not kept.
    """

    first_step: int
    latents_KCHW: tuple[torch.Tensor, ...]
    metrics: Mapping[str, float]
    requests: tuple[str, ...] = ()
    fingerprint: str = ""
    noises_KCHW: tuple[torch.Tensor, ...] = ()

    def to_state(self) -> dict[str, Any]:
        """Return it as tensors and JSON-safe values, for a run that is resumed before all choices are made."""
        tensors = {f"candidates.{number}": latents for number, latents in enumerate(self.latents_KCHW)}
        tensors |= {f"candidates.noise.{number}": noises for number, noises in enumerate(self.noises_KCHW)}
        values = {
            "first_step": self.first_step,
            "requests": list(self.requests),
            "metrics": dict(self.metrics),
            "fingerprint": self.fingerprint,
        }
        return {"candidates": values, **tensors}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Candidates:
        """Return the candidates of a state."""
        values = state["candidates"]
        numbers = range(len(values["requests"]))
        latents = tuple(state[f"candidates.{number}"] for number in numbers)
        noises = tuple(state[f"candidates.noise.{n}"] for n in numbers if f"candidates.noise.{n}" in state)
        requests, fingerprint = tuple(values["requests"]), values.get("fingerprint", "")
        return cls(values["first_step"], latents, values["metrics"], requests, fingerprint, noises)

    def pair_of(self, prompt: int, extremes: Extremes) -> torch.Tensor:
        """Return the latents of two images of a prompt, and after them their noises if they are kept, (N, C, H, W)."""
        both = list(extremes)
        parts = [of[prompt][both] for of in (self.latents_KCHW, self.noises_KCHW) if of]
        return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class PairRollout:
    """A rollout that is being trained on: the latents of its pairs by place, on the offload device.

    A pair has (2, C, H, W), the chosen image first; or (4, C, H, W) if the noises are kept that they were sampled from;
    or (3, C, H, W) for a denoising step, with the latents before it, and the chosen and the rejected ones after it.
    Without any choice the rollout is silent: then it has one pair of any two, which is trained with a weight of 0.
    `fingerprint` identifies the prompts.
    """

    first_step: int
    latents_NCHW: Mapping[Place, torch.Tensor]
    metrics: Mapping[str, float]
    is_silent: bool = False
    fingerprint: str = ""

    def places_of(self, update: int, pairs_per_update: int, *, seed: int) -> list[list[Place]]:
        """Return the places of the pairs of an optimizer step on it, by batch and denoising step.

        With `pairs_per_update` above 0 the optimizer steps train on so many of them in turn, in an order that follows
        from the seed of the rollout, otherwise on all.
        """
        places = sorted(self.latents_NCHW)
        if 0 < pairs_per_update < len(places):
            generator = torch.Generator().manual_seed(seed)
            order = torch.randperm(len(places), generator=generator).tolist()
            numbers = range(update * pairs_per_update, (update + 1) * pairs_per_update)
            places = sorted(places[order[number % len(places)]] for number in numbers)
        together: dict[tuple[int, int], list[Place]] = {}
        for place in places:
            together.setdefault((place[0], place[2]), []).append(place)
        return list(together.values())

    def to_state(self) -> dict[str, Any]:
        """Return it as tensors and JSON-safe values, for a run that is resumed between its optimizer steps."""
        values = {
            "first_step": self.first_step,
            "places": [list(place) for place in self.latents_NCHW],
            "metrics": dict(self.metrics),
            "is_silent": self.is_silent,
            "fingerprint": self.fingerprint,
        }
        return {"rollout": values, **{_key(place): latents for place, latents in self.latents_NCHW.items()}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PairRollout:
        """Return the rollout of a state."""
        values = state["rollout"]
        places = [(batch, row, step) for batch, row, step in values["places"]]
        latents = {place: state[_key(place)] for place in places}
        return cls(values["first_step"], latents, values["metrics"], values["is_silent"], values.get("fingerprint", ""))


def _key(place: Place) -> str:
    return "pair." + ".".join(map(str, place))


def rows_of(batch_sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the number of the batch and the row of the prompts of an accumulation group, in order."""
    yield from ((batch, row) for batch, size in enumerate(batch_sizes) for row in range(size))


def best_and_worst(sampled: SampledGroup, reward: CompositeReward, combination: Combination) -> list[Extremes | None]:
    """Return the numbers of the best and the worst image of each prompt; None if its rewards are equal, or missing.

    Several reward models are combined as for policy gradients.
    """
    prompts = sampled.prompt_numbers
    advantages = combine_advantages(
        sampled.scores,
        {model.name: model.weight for model in reward.reward_models},
        lambda name, scores: group_advantages(scores, prompts),
        combination=combination,
    )
    by_prompt: dict[int, list[float]] = {}
    for prompt, advantage in zip(prompts, advantages, strict=True):
        by_prompt.setdefault(prompt, []).append(advantage)
    return [extremes_of(pairs) for _, pairs in sorted(by_prompt.items())]


def extremes_of(values: Sequence[float]) -> Extremes | None:
    """Return the numbers of the highest and the lowest value, the first of equal ones; None if all are equal."""
    best, worst = values.index(max(values)), values.index(min(values))
    return (best, worst) if values[best] - values[worst] > _SMALLEST_GAP else None


def pairs_of(candidates: Candidates, chosen: Sequence[Extremes | None], batch_sizes: Sequence[int]) -> PairRollout:
    """Return the pairs of candidates by the best and the worst image of each prompt; prompts without are left out."""
    places = [(*row, 0) for row in rows_of(batch_sizes)]
    groups = enumerate(zip(places, chosen, strict=True))
    pairs = {place: candidates.pair_of(n, extremes) for n, (place, extremes) in groups if extremes is not None}
    metrics = {**candidates.metrics, "equal_rewards": sum(c is None for c in chosen) / len(chosen)}
    if pairs:
        return PairRollout(candidates.first_step, pairs, metrics)
    return PairRollout(candidates.first_step, {(0, 0, 0): candidates.pair_of(0, (0, 1))}, metrics, is_silent=True)
