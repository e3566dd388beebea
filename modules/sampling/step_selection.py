"""Which denoising steps of a rollout a policy is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


class StepSelection(Protocol):
    """Selects the steps that are stochastic in a rollout, and of those the ones to train on."""

    def stochastic_steps(self, num_steps: int, optimizer_step: int) -> frozenset[int] | None:
        """Return the numbers of the steps that add noise, in the rollout before an optimizer step; None for all."""
        ...

    def select(self, trainable: Sequence[int], seed: int) -> tuple[int, ...]:
        """Return the steps to train on, of those that can be; at least one of them."""
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
