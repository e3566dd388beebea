"""Sana's autoencoder, DC-AE (Chen et al. 2024, arXiv 2410.10733), which encodes latents without a distribution."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.autoencoders import autoencoder_dc
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.models.modeling_outputs import AutoencoderKLOutput

from modules.families.parts.traced_passes import TracedPasses, autoencoder_passes
from modules.families.spec import FamilySpec

_NO_VARIANCE = -30.0  # the lowest logarithm of a variance that diffusers' distribution has


class AutoencoderDC(autoencoder_dc.AutoencoderDC):  # type: ignore[misc]  # diffusers has no types
    """diffusers' module, with the same configs and tensors, whose latents are a distribution without variance."""

    def encode(self, x: torch.Tensor, return_dict: bool = True) -> Any:
        """Return the distribution of the latents (B, 32, H, W) of images (B, 3, P, P) in [-1, 1]."""
        latents_BCHW = self.encoder(x).contiguous()  # as cached latents are: the last bits of results depend on it
        moments_BMHW = torch.cat([latents_BCHW, torch.full_like(latents_BCHW, _NO_VARIANCE)], dim=1)
        distribution = DiagonalGaussianDistribution(moments_BMHW, deterministic=True)
        return AutoencoderKLOutput(latent_dist=distribution) if return_dict else (distribution,)


def vae_passes(vae: Any, spec: FamilySpec) -> TracedPasses:
    """Return the encoding and decoding of an `AutoencoderDC`."""
    factor = vae.spatial_compression_ratio
    return autoencoder_passes(vae, vae.config.in_channels, vae.config.latent_channels, factor=factor)
