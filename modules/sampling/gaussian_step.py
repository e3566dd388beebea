"""The denoising steps that a policy can be trained on: Gaussians around a mean that follows from the model's output.

`ddim_step.py` has the steps of DDPM models, `flow_step.py` of flow models. Coefficients are Python numbers, so that
nothing waits for a GPU; results are float32 for any input dtype.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class GaussianStep(Protocol):
    """A step of a denoising loop from `timestep`; deterministic if its sigma is 0."""

    @property
    def timestep(self) -> float:
        """The timestep that the model reads; an int for a model with whole ones."""
        ...

    @property
    def sigma(self) -> float:
        """The standard deviation of the next latents; 0 in a deterministic step."""
        ...

    @property
    def reach(self) -> float:
        """How far the mean moves where every value of the model's output moves by 1, in a step without fresh noise."""
        ...

    @property
    def influence(self) -> float:
        """The same with fresh noise, in standard deviations; 0 for a deterministic step.

        It is the weight of the step in a policy gradient.
        """
        ...

    def mean(self, output_BCHW: torch.Tensor, latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the mean of the next latents, float32."""
        ...

    def next_latents(self, mean_BCHW: torch.Tensor, noise_BCHW: torch.Tensor | None) -> torch.Tensor:
        """Return the next latents: the mean plus sigma times standard normal noise; None for a deterministic step."""
        ...

    def log_prob(self, next_BCHW: torch.Tensor, mean_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the log-density of next latents under a mean (`log_density`)."""
        ...

    def kl(self, mean_BCHW: torch.Tensor, reference_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the divergence of two policies (`divergence`)."""
        ...

    def clean_before(self, next_BCHW: torch.Tensor, noise_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the clean latents from which a known noise makes these next latents, float32."""
        ...


def timestep_tensor(step: GaussianStep, device: torch.device) -> torch.Tensor:
    """Return the timestep of a step for the model, of shape (); whole ones as int64."""
    dtype = torch.int64 if isinstance(step.timestep, int) else torch.float32
    return torch.full((), step.timestep, dtype=dtype, device=device)


def log_density(next_BCHW: torch.Tensor, mean_BCHW: torch.Tensor, sigma: float) -> torch.Tensor:
    """Return the log-density of next latents under a mean, averaged over their dimensions, float32 of shape (B,).

    The average, not the sum, as in DDPO (Black et al. 2023), whose clip range depends on it. A deterministic step has
    no density; it returns 0, so that the ratio of two policies is 1 and has no gradient.
    """
    if sigma == 0.0:
        return torch.zeros(len(mean_BCHW), device=mean_BCHW.device)
    scaled_BCHW = (next_BCHW.float() - mean_BCHW.float()) / sigma
    return (-0.5 * scaled_BCHW.square()).flatten(1).mean(dim=1) - math.log(sigma) - _LOG_SQRT_2PI


def divergence(mean_BCHW: torch.Tensor, other_BCHW: torch.Tensor, sigma: float) -> torch.Tensor:
    """Return the divergence of two Gaussians that share sigma: `(mu - mu')^2 / (2 sigma^2)`.

    Averaged over the dimensions as `log_density` is, float32 of shape (B,); 0 for a deterministic step.
    """
    if sigma == 0.0:
        return torch.zeros(len(mean_BCHW), device=mean_BCHW.device)
    scaled_BCHW = (mean_BCHW.float() - other_BCHW.float()) / sigma
    return (0.5 * scaled_BCHW.square()).flatten(1).mean(dim=1)
