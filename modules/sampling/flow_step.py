"""One step of a flow model's denoising loop: Euler's, or with fresh noise a Gaussian with a density.

The deterministic steps are the sampler Euler's: diffusers' `FlowMatchEulerDiscreteScheduler` on the grid of the family,
at the shift of the image's size. On the straight path of a flow a deterministic step of DDIM is the same (Song et al.
2021, eq. 12 with eta 0).

A policy gradient needs fresh noise in its steps. Two ways to add it keep the distribution of the latents at each noise
level s, if the velocity v is exact. With `x_0 = x - s v` and `eps = x + (1 - s) v`, from s to the next level n:

- "sde", Flow-GRPO (Liu et al. 2025, arXiv 2505.05470, eq. 9): an Euler-Maruyama step of an SDE, exact for small steps,
  `x_n = x + (v + g^2 / (2 s) eps) (n - s) + g sqrt(s - n) z` with `g = a sqrt(s / (1 - s))`.
- "cps", coefficients-preserving (Wang and Yu 2025, arXiv 2509.05952): `x_n = (1 - n) x_0 + sqrt(n^2 - sigma^2) eps +
  sigma z` with `sigma = n sin(a pi / 2)`, for steps of any size: the image and the noise keep their shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from modules.data.buckets import Size
from modules.families.protocol import ModelFamily
from modules.sampling.denoising_loop import scheduler_for
from modules.sampling.gaussian_step import divergence, log_density

FlowNoise = Literal["cps", "sde"]


@dataclass(frozen=True, slots=True)
class FlowStep:
    """The step from `timestep`, with the noise level `level` in [0, 1], to the next level.

    `eta` is the amount of fresh noise, a above: 0 is Euler's step. The last step, to level 0, adds none.
    """

    timestep: float
    level: float
    level_next: float
    eta: float = 0.0
    noise: FlowNoise = "cps"

    @property
    def sigma(self) -> float:
        """The standard deviation of the next latents; 0 in a deterministic step."""
        if self.eta == 0.0 or self.level_next <= 0.0:
            return 0.0
        if self.noise == "cps":
            return self.level_next * math.sin(self.eta * math.pi / 2)
        return self._diffusion * math.sqrt(self.reach) if self.reach > 0.0 else 0.0  # both may be rounded to pure noise

    @property
    def _diffusion(self) -> float:
        """The coefficient g; at pure noise, where it is infinite, with the next level in the divisor as published."""
        free = 1.0 - (self.level if self.level < 1.0 else self.level_next)
        return self.eta * math.sqrt(self.level / free)

    @property
    def reach(self) -> float:
        """The length `-dt` of the step, by which a deterministic mean moves where the velocity moves by 1."""
        return self.level - self.level_next

    @property
    def influence(self) -> float:
        """How many standard deviations the mean moves where every value of the velocity moves by 1.

        0 for a deterministic step.
        """
        sigma = self.sigma
        return abs(self._velocity_factor(sigma)) / sigma if sigma > 0 else 0.0

    def mean(self, output_BCHW: torch.Tensor, latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the mean of the next latents for a velocity, float32; `x + (level_next - level) v` without noise."""
        latents_BCHW, velocity_BCHW, sigma = latents_BCHW.float(), output_BCHW.float(), self.sigma
        if sigma == 0.0:
            return latents_BCHW + (self.level_next - self.level) * velocity_BCHW
        return self._latents_factor(sigma) * latents_BCHW + self._velocity_factor(sigma) * velocity_BCHW

    def next_latents(self, mean_BCHW: torch.Tensor, noise_BCHW: torch.Tensor | None) -> torch.Tensor:
        """Return the next latents: the mean plus sigma times standard normal noise; None for a deterministic step."""
        return mean_BCHW if noise_BCHW is None else mean_BCHW + self.sigma * noise_BCHW.float()

    def log_prob(self, next_BCHW: torch.Tensor, mean_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the log-density of next latents under a mean, float32 of shape (B,); 0 without noise.

        The paper of "cps" uses the squared distance alone, a multiple of it whose ratio does not belong to a density.
        """
        return log_density(next_BCHW, mean_BCHW, self.sigma)

    def kl(self, mean_BCHW: torch.Tensor, reference_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the divergence of two policies' Gaussians, which share sigma, float32 of shape (B,)."""
        return divergence(mean_BCHW, reference_BCHW, self.sigma)

    def clean_before(self, next_BCHW: torch.Tensor, noise_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the clean latents `(x_n - n eps) / (1 - n)` for a known noise, float32."""
        return (next_BCHW.float() - self.level_next * noise_BCHW.float()) / (1.0 - self.level_next)

    def _latents_factor(self, sigma: float) -> float:
        if self.noise == "cps":
            return (1.0 - self.level_next) + self._kept_noise(sigma)
        return 1.0 - self._diffusion**2 / (2.0 * self.level) * self.reach

    def _velocity_factor(self, sigma: float) -> float:
        if self.noise == "cps":
            return self._kept_noise(sigma) * (1.0 - self.level) - (1.0 - self.level_next) * self.level
        return -(1.0 + self._diffusion**2 * (1.0 - self.level) / (2.0 * self.level)) * self.reach

    def _kept_noise(self, sigma: float) -> float:
        """The share of the predicted noise that stays, for "cps"; rounding may make its square negative at eta 1."""
        return math.sqrt(max(self.level_next**2 - sigma**2, 0.0))


def flow_steps(
    family: ModelFamily, size: Size, *, num_steps: int, eta: float = 0.0, noise: FlowNoise = "cps"
) -> tuple[FlowStep, ...]:
    """Return the steps of a flow model's denoising loop for images of a size, the noisiest first.

    Raises DarkroomError for a model that is not a flow model.
    """
    scheduler = scheduler_for(family, "euler", size)
    scheduler.set_timesteps(num_steps)
    levels = [float(sigma) for sigma in scheduler.scheduler.sigmas.tolist()]
    timesteps = [float(timestep) for timestep in scheduler.timesteps.tolist()]
    return tuple(FlowStep(*step, eta, noise) for step in zip(timesteps, levels, levels[1:], strict=False))
