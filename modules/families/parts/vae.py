"""The variational autoencoder that SD and SDXL share: images to latents and back (Rombach et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from modules.families.protocol import Posterior


def encode_mean(vae: Any, images_B3PP: torch.Tensor) -> torch.Tensor:
    """Return the scaled mean latents (B, C, H, W) of images in [-1, 1].

    One image at a time: the last bits of a convolution depend on the batch size, but latents must depend only on their
    image, whether they come from the cache or not.
    """
    first = next(vae.parameters())
    latents = [vae.encode(image[None].to(first.dtype)).latent_dist.mode() for image in images_B3PP]
    return torch.cat(latents) * float(vae.config.scaling_factor)


def encode_posterior(vae: Any, images_B3PP: torch.Tensor) -> Posterior:
    """Return the distribution of the latents of images in [-1, 1], with gradients."""
    first = next(vae.parameters())
    found = vae.encode(images_B3PP.to(first.dtype)).latent_dist
    return Posterior(found.mean.float(), found.logvar.float(), float(vae.config.scaling_factor))


def encode_drawn(vae: Any, images_B3PP: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return scaled latents (B, C, H, W) of images in [-1, 1], drawn from the VAE's distribution."""
    first = next(vae.parameters())
    latents: torch.Tensor = vae.encode(images_B3PP.to(first.dtype)).latent_dist.sample(generator)
    return latents * float(vae.config.scaling_factor)


def decode_latents(decode: Callable[[torch.Tensor], Any], vae: Any, latents_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the images (B, 3, P, P) of scaled latents, float32 in about [-1, 1]."""
    first = next(vae.parameters())
    images: torch.Tensor = decode((latents_BCHW / vae.config.scaling_factor).to(first.dtype)).sample
    return images.float()
