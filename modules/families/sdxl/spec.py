"""Stable Diffusion XL (Podell et al. 2023): two CLIP text encoders, a UNet that is told of sizes, a VAE of factor 8."""

from __future__ import annotations

from modules.families.spec import FamilySpec, PartSpec

SDXL = FamilySpec(
    name="sdxl",
    label="Stable Diffusion XL",
    parts=(
        PartSpec("unet", "Image model (UNet)", "denoiser"),
        PartSpec("text_encoder", "Text encoder 1 (CLIP-L)", "text_encoder"),
        PartSpec("text_encoder_2", "Text encoder 2 (OpenCLIP bigG)", "text_encoder"),
        PartSpec("vae", "Image encoder (VAE)", "vae", trainable=False),
    ),
    factory="modules.families.sdxl.load:load",
    default_resolution_px=1024,
    size_step_px=8,
    latent_factor=8,
    latent_channels=4,
    chunk_tokens=75,
    pipelines=("StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline"),
    vae_overflows=True,
)
