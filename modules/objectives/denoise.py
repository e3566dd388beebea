"""The denoising loss (Ho et al. 2020, eq. 14): the squared distance between what was predicted and what was added."""

from __future__ import annotations

import torch

from modules.data.conditioning import Conditioning
from modules.diffusion.process import NoiseProcess
from modules.diffusion.weighting import min_snr_weights
from modules.families.protocol import ModelFamily


def denoising_losses(output_BCHW: torch.Tensor, target_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error of each sample, float32 of shape (B,)."""
    return (output_BCHW.float() - target_BCHW.float()).square().flatten(1).mean(dim=1)


def predicted_losses(
    family: ModelFamily,
    latents_BCHW: torch.Tensor,
    conditioning: Conditioning,
    *,
    timesteps_B: torch.Tensor,
    noise_BCHW: torch.Tensor,
) -> torch.Tensor:
    """Return each sample's plain denoising loss at given timesteps and noise, float32 of shape (B,)."""
    noisy_BCHW = family.process.add_noise(latents_BCHW, noise_BCHW, timesteps_B)
    output_BCHW = family.predict(noisy_BCHW, timesteps_B, conditioning)
    return denoising_losses(output_BCHW, family.process.target(latents_BCHW, noise_BCHW, timesteps_B))


def snr_weights(
    process: NoiseProcess, timesteps_B: torch.Tensor, *, weighting: str, gamma: float
) -> torch.Tensor | None:
    """Return the weights of the losses at these timesteps, shape (B,), or None where all count alike."""
    if weighting == "none":
        return None
    return min_snr_weights(process.snr(timesteps_B), gamma=gamma, prediction_type=process.prediction_type)
