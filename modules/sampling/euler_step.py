"""One Euler step of a flow model, for methods that train on the denoising loop without densities (AlignProp).

The steps are the sampler Euler's: diffusers' `FlowMatchEulerDiscreteScheduler` on the grid of the family, at the
shift of the image's size. On the straight path of a flow a deterministic step of DDIM is the same (Song et al. 2021,
eq. 12 with eta 0).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from modules.data.buckets import Size
from modules.families.protocol import ModelFamily
from modules.sampling.denoising_loop import scheduler_for


@dataclass(frozen=True, slots=True)
class EulerStep:
    """The step from `timestep`, with the noise level `level` in [0, 1], to the next level; it adds no noise."""

    timestep: float
    level: float
    level_next: float

    @property
    def sigma(self) -> float:
        """The standard deviation of the next latents: 0."""
        return 0.0

    def mean(self, output_BCHW: torch.Tensor, latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the next latents `x + (level_next - level) v` for a velocity, float32."""
        return latents_BCHW.float() + (self.level_next - self.level) * output_BCHW.float()

    def next_latents(self, mean_BCHW: torch.Tensor, noise_BCHW: torch.Tensor | None) -> torch.Tensor:
        """Return the mean."""
        return mean_BCHW

    def log_prob(self, next_BCHW: torch.Tensor, mean_BCHW: torch.Tensor) -> torch.Tensor:
        """Return zeros of shape (B,): a deterministic step has no density, as in `DdimStep.log_prob`."""
        return torch.zeros(len(mean_BCHW), device=mean_BCHW.device)


def euler_steps(family: ModelFamily, size: Size, *, num_steps: int) -> tuple[EulerStep, ...]:
    """Return the steps of a flow model's denoising loop for images of a size, the noisiest first.

    Raises DarkroomError for a model that is not a flow model.
    """
    scheduler = scheduler_for(family, "euler", size)
    scheduler.set_timesteps(num_steps)
    levels = [float(sigma) for sigma in scheduler.scheduler.sigmas.tolist()]
    timesteps = [float(timestep) for timestep in scheduler.timesteps.tolist()]
    return tuple(EulerStep(*step) for step in zip(timesteps, levels, levels[1:], strict=False))
