"""The denoising loss (Ho et al. 2020, eq. 14): the squared error between the prediction and the target.

It stays unreduced, (B, C, H, W), until all weights are applied; only `sample_losses` reduces it.
"""

from __future__ import annotations

import torch

from modules.data.conditioning import Conditioning
from modules.diffusion.process import NoiseProcess
from modules.diffusion.weightings.registry import WEIGHTINGS
from modules.families.protocol import ModelFamily


def squared_errors(output_BCHW: torch.Tensor, target_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the squared error of each element, float32 of shape (B, C, H, W)."""
    return (output_BCHW.float() - target_BCHW.float()).square()


def prediction_errors(
    family: ModelFamily,
    latents_BCHW: torch.Tensor,
    conditioning: Conditioning,
    *,
    timesteps_B: torch.Tensor,
    noise_BCHW: torch.Tensor,
) -> torch.Tensor:
    """Return the unweighted errors of the model's prediction at given timesteps and noise, float32 (B, C, H, W)."""
    noisy_BCHW = family.process.add_noise(latents_BCHW, noise_BCHW, timesteps_B)
    output_BCHW = family.predict(noisy_BCHW, timesteps_B, conditioning)
    return squared_errors(output_BCHW, family.process.target(latents_BCHW, noise_BCHW, timesteps_B))


def sample_losses(errors_BCHW: torch.Tensor, *weights_B: torch.Tensor | None) -> torch.Tensor:
    """Return each sample's loss, float32 of shape (B,): the mean of its elements, times its weights in order.

    Weights of elements (a mask) must be applied before the mean. Weights of None count as 1.
    """
    losses_B = errors_BCHW.flatten(1).mean(dim=1)
    for weights in weights_B:
        if weights is not None:
            losses_B = losses_B * weights
    return losses_B


def timestep_weights(
    process: NoiseProcess, timesteps_B: torch.Tensor, *, weighting: str, gamma: float
) -> torch.Tensor | None:
    """Return the weights of the losses at these timesteps, shape (B,), or None where all are equal.

    Raises ValueError for a weighting that is not supported yet.
    """
    weights = WEIGHTINGS[weighting].weights
    if weights is None:
        raise ValueError(f"The loss weighting {weighting!r} is not supported yet.")
    return weights(process, timesteps_B, gamma)
