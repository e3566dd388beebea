"""Qwen-Image 2.1's autoencoder, for images without transparency: one frame, and a fourth channel that is opaque."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.autoencoders import autoencoder_kl_qwenimage21 as qwenimage21
from diffusers.models.autoencoders.vae import DecoderOutput, DiagonalGaussianDistribution
from diffusers.models.modeling_outputs import AutoencoderKLOutput

from modules.families.parts.traced_passes import TracedPasses, autoencoder_passes
from modules.families.spec import FamilySpec

_COLOURS = 3


class AutoencoderKLQwenImage21(qwenimage21.AutoencoderKLQwenImage21):  # type: ignore[misc]  # diffusers has no types
    """diffusers' module, with the same configs and tensors; equal to its `encode` and `decode` of one frame.

    diffusers' cache of earlier frames is left out: it is needed only for further frames.
    """

    def encode(self, x: torch.Tensor, return_dict: bool = True) -> Any:
        """Return the distribution of the latents (B, C, H, W) of images (B, 3, P, P) in [-1, 1]."""
        opaque = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, self.config.in_channels - _COLOURS), value=1.0)
        moments_BCHW = self.quant_conv(self.encoder(opaque.unsqueeze(2))).squeeze(2)
        distribution = DiagonalGaussianDistribution(moments_BCHW)
        return AutoencoderKLOutput(latent_dist=distribution) if return_dict else (distribution,)

    def decode(self, z: torch.Tensor, return_dict: bool = True) -> Any:
        """Return the images (B, 3, P, P) of latents (B, C, H, W), in [-1, 1], without their transparency."""
        frames_BC1PP = self.decoder(self.post_quant_conv(z.unsqueeze(2)), first_chunk=True)
        images_B3PP = frames_BC1PP[:, :_COLOURS].squeeze(2).clamp(-1.0, 1.0)
        return DecoderOutput(sample=images_B3PP) if return_dict else (images_B3PP,)


def vae_passes(vae: Any, spec: FamilySpec) -> TracedPasses:
    """Return the encoding and decoding of an `AutoencoderKLQwenImage21`."""
    return autoencoder_passes(vae, _COLOURS, spec.latents.channels, factor=int(spec.latents.factor))
