"""Sigma weighting: the loss counts in proportion to the noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.diffusion.weightings.spec import WeightingSpec

if TYPE_CHECKING:
    import torch

    from modules.diffusion.process import NoiseProcess


def sigma_weights(snr_B: torch.Tensor) -> torch.Tensor:
    """Return the sigma of flow matching at the same SNR, shape (B,): `1 / (1 + sqrt(snr))`, from 0 (clean) to 1.

    A rectified flow `(1 - sigma) x_0 + sigma eps` (Liu et al. 2022) has the SNR `((1 - sigma) / sigma)^2`. So a noise
    level has the same weight for the models of both kinds.
    """
    return 1.0 / (1.0 + snr_B.sqrt())


def _weights(process: NoiseProcess, timesteps_B: torch.Tensor, gamma: float) -> torch.Tensor:
    return sigma_weights(process.snr(timesteps_B))


SPEC = WeightingSpec("sigma", "Sigma", _weights, "Sigma counts a timestep in proportion to its share of noise.")
