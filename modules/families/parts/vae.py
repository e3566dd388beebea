"""Variational autoencoders of diffusers: images to latents and back (Rombach et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from modules.diffusion.latents import LatentNorm, PatchNorm, PerChannel, Scale, ShiftAndScale
from modules.families.protocol import Posterior


def norm_of(vae: Any) -> LatentNorm:
    """Return the normalisation of a VAE's latents, from its config and, for a batch norm, from its weights."""
    config = vae.config
    if (batch_norm := getattr(vae, "bn", None)) is not None:
        variances = batch_norm.running_var.double() + config.batch_norm_eps
        return PatchNorm(tuple(batch_norm.running_mean.tolist()), tuple(variances.sqrt().tolist()))
    scale = float(getattr(config, "scaling_factor", None) or 1.0)
    if (means := getattr(config, "latents_mean", None)) is not None:
        return PerChannel(tuple(map(float, means)), tuple(map(float, config.latents_std)), scale)
    if shift := getattr(config, "shift_factor", None):
        return ShiftAndScale(float(shift), scale)
    return Scale(scale)


def encode_mean(vae: Any, images_B3PP: torch.Tensor) -> torch.Tensor:
    """Return the normalised mean latents (B, C, H, W) of images in [-1, 1].

    One image at a time: the last bits of a convolution depend on the batch size, but latents must depend only on their
    image, whether they come from the cache or not.
    """
    first = next(vae.parameters())
    latents = [vae.encode(image[None].to(first.dtype)).latent_dist.mode() for image in images_B3PP]
    return norm_of(vae).normalize(torch.cat(latents))


def encode_posterior(vae: Any, images_B3PP: torch.Tensor) -> Posterior:
    """Return the distribution of the latents of images in [-1, 1], with gradients."""
    first = next(vae.parameters())
    distribution = vae.encode(images_B3PP.to(first.dtype)).latent_dist
    return Posterior(distribution.mean.float(), distribution.logvar.float(), norm_of(vae))


def encode_drawn(vae: Any, images_B3PP: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return normalised latents (B, C, H, W) of images in [-1, 1], drawn from the VAE's distribution."""
    first = next(vae.parameters())
    latents: torch.Tensor = vae.encode(images_B3PP.to(first.dtype)).latent_dist.sample(generator)
    return norm_of(vae).normalize(latents)


def decode_latents(decode: Callable[[torch.Tensor], Any], vae: Any, latents_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the images (B, 3, P, P) of normalised latents, float32 in about [-1, 1]."""
    first = next(vae.parameters())
    images: torch.Tensor = decode(norm_of(vae).denormalize(latents_BCHW).to(first.dtype)).sample
    return images.float()
