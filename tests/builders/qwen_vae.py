"""A tiny autoencoder of Qwen-Image, as Krea 2 and Anima have it, too."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLQwenImage


def tiny_qwen_vae() -> AutoencoderKLQwenImage:
    """Return the autoencoder with random weights: 16 latent channels, a factor of 8."""
    torch.manual_seed(3)
    vae: AutoencoderKLQwenImage = AutoencoderKLQwenImage(base_dim=4, dim_mult=[1, 1, 2, 2], num_res_blocks=1)
    return vae.eval()
