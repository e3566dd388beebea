"""The noise schedule of a discrete-time diffusion model: from betas to cumulative alphas.

Notation (Ho et al. 2020, "Denoising Diffusion Probabilistic Models", eq. 4): with `alpha_t = 1 - beta_t`
and `abar_t = prod(alpha_1 .. alpha_t)`, a noisy sample is `x_t = sqrt(abar_t) x_0 + sqrt(1 - abar_t) eps`.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

BetaSchedule = Literal["linear", "scaled_linear"]


def cumulative_alphas(
    *,
    num_timesteps: int = 1000,
    beta_start: float = 0.00085,
    beta_end: float = 0.012,
    beta_schedule: BetaSchedule = "scaled_linear",
) -> torch.Tensor:
    """Return `abar_T`, the cumulative products of `1 - beta`, float32 of shape (num_timesteps,).

    The defaults are Stable Diffusion's own (Rombach et al. 2022): "scaled_linear" is linear in sqrt(beta).
    Raises ValueError for another schedule name.
    """
    match beta_schedule:
        case "linear":
            betas_T = torch.linspace(beta_start, beta_end, num_timesteps, dtype=torch.float32)
        case "scaled_linear":
            betas_T = torch.linspace(beta_start**0.5, beta_end**0.5, num_timesteps, dtype=torch.float32) ** 2
        case _:
            raise ValueError(
                f"The scheduler's beta_schedule is {beta_schedule!r}; only 'linear' and 'scaled_linear' are supported."
            )
    return torch.cumprod(1.0 - betas_T, dim=0)


def cosine_cumulative_alphas(*, num_timesteps: int = 1000, scaler: float = 1.0, offset: float = 0.008) -> torch.Tensor:
    """Return the cosine schedule (Nichol and Dhariwal 2021, eq. 17) at the times 1 / T, 2 / T, ..., 1, float32.

    As in diffusers' `DDPMWuerstchenScheduler`: `scaler` above 1 moves the times to more noise, below 1 to less, and no
    timestep is without signal or noise.
    """
    times_T = torch.arange(1, num_timesteps + 1, dtype=torch.float64) / num_timesteps
    moved_T = 1.0 - (1.0 - times_T) ** scaler if scaler > 1.0 else times_T**scaler
    start = math.cos(offset / (1.0 + offset) * math.pi / 2) ** 2
    abar_T = ((moved_T + offset) / (1.0 + offset) * math.pi / 2).cos() ** 2 / start
    return abar_T.clamp(0.0001, 0.9999).float()


def rescale_to_zero_snr(abar_T: torch.Tensor) -> torch.Tensor:
    """Return cumulative alphas rescaled so that the last timestep contains no signal and the first is unchanged.

    Lin et al. 2023, "Common Diffusion Noise Schedules and Sample Steps are Flawed", algorithm 1: `sqrt(abar)` is
    shifted and scaled.
    """
    root_T = abar_T.sqrt()
    first, last = root_T[0].clone(), root_T[-1].clone()
    return ((root_T - last) * first / (first - last)) ** 2
