"""The denoising steps of a rollout that a policy, or the gradient of a reward, is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


class StepSelection(Protocol):
    """Selects the steps that are stochastic in a rollout, and the steps to train on among them."""

    def stochastic_steps(self, num_steps: int, optimizer_step: int) -> frozenset[int] | None:
        """Return the numbers of the steps that add noise, in the rollout before an optimizer step; None for all."""
        ...

    def select(self, trainable: Sequence[int], seed: int) -> tuple[int, ...]:
        """Return the steps to train on among the trainable ones; at least one of them."""
        ...


@dataclass(frozen=True, slots=True)
class RandomShare:
    """A random share of all steps (DanceGRPO, Xue et al. 2025)."""

    share: float = 1.0

    def stochastic_steps(self, num_steps: int, optimizer_step: int) -> frozenset[int] | None:
        """Return None: all steps add noise."""
        return None

    def select(self, trainable: Sequence[int], seed: int) -> tuple[int, ...]:
        """Return the share of the steps, in their order; which ones depends only on the seed."""
        count = max(1, round(self.share * len(trainable)))
        order = torch.randperm(len(trainable), generator=torch.Generator().manual_seed(seed)).tolist()
        return tuple(trainable[i] for i in sorted(order[:count]))


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """`size` consecutive steps; all others are deterministic (MixGRPO, Li et al. 2025).

    The window begins with the noisiest steps, moves by one step after every `every` optimizer steps, and from the last
    steps back to the first. It never contains the last denoising step, which cannot be trained.
    """

    size: int
    every: int

    def stochastic_steps(self, num_steps: int, optimizer_step: int) -> frozenset[int] | None:
        """Return the steps in the window."""
        first = optimizer_step // self.every % (num_steps - self.size)
        return frozenset(range(first, first + self.size))

    def select(self, trainable: Sequence[int], seed: int) -> tuple[int, ...]:
        """Return all steps in the window."""
        return tuple(trainable)


@dataclass(frozen=True, slots=True)
class Truncation:
    """The last `lowest` to `highest` denoising steps have a gradient; the bounds are equal for a fixed number.

    One random number per rollout, as in the authors' later code of AlignProp (Prabhudesai et al. 2023, section 4:
    uniform K): independent decisions per step would keep steps whose gradient a later step blocks.
    Raises ValueError if `lowest` is below 1 or above `highest`.
    """

    lowest: int
    highest: int

    def __post_init__(self) -> None:
        if not 1 <= self.lowest <= self.highest:
            raise ValueError(f"The bounds {self.lowest} to {self.highest} are not a range that starts at 1 or more.")

    def draw(self, seed: int) -> int:
        """Return how many of the last steps have a gradient, uniform including both bounds; depends only on the seed.

        The seed must come from `derive_seed`, whose bits are uniform.
        """
        return self.lowest + seed % (self.highest - self.lowest + 1)


def truncation_of(truncate: str, *, backprop_steps: int, backprop_steps_min: int) -> Truncation:
    """Return the truncation for a config's choice: "fixed" at `backprop_steps`, or "uniform" up to it."""
    return Truncation(backprop_steps if truncate == "fixed" else backprop_steps_min, backprop_steps)
