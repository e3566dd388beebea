"""The trust regions of a policy gradient: how far a denoising step may move from the model that sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from modules.objectives.policy_losses import (
    clipped_surrogate,
    divergence_surrogate,
    is_beyond,
    is_outside,
    normalized_log_ratios,
)
from modules.sampling.gaussian_step import GaussianStep


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The loss of each image in a denoising step, and which of them are outside of the trust region, (B,) each."""

    losses_B: torch.Tensor
    is_outside_B: torch.Tensor


@dataclass(frozen=True, slots=True)
class TrustRegion:
    """A trust region: PPO's clipped ratio, GRPO-Guard's normalized one, or the divergence of Flow-DPPO."""

    kind: Literal["clip", "normalized", "divergence"] = "clip"
    clip_range: float = 1e-4
    divergence_limit: float = 1e-5

    @property
    def needs_means(self) -> bool:
        """Whether it compares the means of the steps with those that sampled."""
        return self.kind != "clip"

    @property
    def has_clip_range(self) -> bool:
        """Whether ratios outside of the clip range are not trained."""
        return self.kind != "divergence"

    def surrogate(
        self,
        step: GaussianStep,
        log_ratios_B: torch.Tensor,
        advantages_B: torch.Tensor,
        divergences_B: torch.Tensor | None,
    ) -> Surrogate:
        """Return the surrogate of a step from its log-ratios and its divergences from the model that sampled, (B,).

        The loss of a normalized ratio is divided by the length of the step, as published, so that a change of the
        model's output counts the same in each. Raises ValueError if the divergences are missing.
        """
        if self.kind == "clip":
            losses_B = clipped_surrogate(log_ratios_B, advantages_B, clip_range=self.clip_range)
            return Surrogate(losses_B, is_outside(log_ratios_B, clip_range=self.clip_range))
        if divergences_B is None:
            raise ValueError("This trust region needs the means of the steps that sampled.")
        if self.kind == "divergence":
            losses_B = divergence_surrogate(log_ratios_B, advantages_B, divergences_B, limit=self.divergence_limit)
            return Surrogate(losses_B, is_beyond(divergences_B, limit=self.divergence_limit))
        ratios_B = normalized_log_ratios(log_ratios_B, divergences_B, sigma=step.sigma)
        losses_B = clipped_surrogate(ratios_B, advantages_B, clip_range=self.clip_range) / step.reach
        return Surrogate(losses_B, is_outside(ratios_B, clip_range=self.clip_range))
