"""Sana's autoencoder, DC-AE (Chen et al. 2024, arXiv 2410.10733): it has latents instead of their distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers.models.autoencoders import autoencoder_dc
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.models.modeling_outputs import AutoencoderKLOutput

from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass

_NO_VARIANCE = -30.0  # the lowest logarithm of a variance that diffusers' distribution has


class AutoencoderDC(autoencoder_dc.AutoencoderDC):  # type: ignore[misc]  # diffusers has no types
    """diffusers' module, with the same configs and tensors, whose latents are a distribution without variance."""

    def encode(self, x: torch.Tensor, return_dict: bool = True) -> Any:
        """Return the distribution of the latents (B, 32, H, W) of images (B, 3, P, P) in [-1, 1]."""
        latents_BCHW = self.encoder(x).contiguous()  # as they are in a cache: the last bits depend on it
        moments_BMHW = torch.cat([latents_BCHW, torch.full_like(latents_BCHW, _NO_VARIANCE)], dim=1)
        distribution = DiagonalGaussianDistribution(moments_BMHW, deterministic=True)
        return AutoencoderKLOutput(latent_dist=distribution) if return_dict else (distribution,)


def vae_passes(vae: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the encoding and decoding of an `AutoencoderDC`."""

    def images(size: PassSize) -> dict[str, Any]:
        return {"x": torch.empty(size.batch, vae.config.in_channels, size.height_px, size.width_px)}

    def latents(size: PassSize) -> dict[str, Any]:
        factor = vae.spatial_compression_ratio
        sides = (size.height_px // factor, size.width_px // factor)
        return {"z": torch.empty(size.batch, vae.config.latent_channels, *sides)}

    def encode(x: torch.Tensor) -> torch.Tensor:
        latents: torch.Tensor = vae.encoder(x)
        return latents

    def decode(z: torch.Tensor) -> torch.Tensor:
        image: torch.Tensor = vae.decode(z).sample
        return image

    return {"encode": TracedPass(encode, images), "decode": TracedPass(decode, latents)}
