"""Stable Diffusion 1.x and 2.x (Rombach et al. 2022): one CLIP text encoder, a UNet, a VAE of factor 8."""

from __future__ import annotations

from modules.families.spec import FamilySpec, PartSpec

SD = FamilySpec(
    name="sd",
    label="Stable Diffusion 1 and 2",
    parts=(
        PartSpec("unet", "Image model (UNet)", "denoiser"),
        PartSpec("text_encoder", "Text encoder", "text_encoder"),
        PartSpec("vae", "Image encoder (VAE)", "vae", trainable=False),
    ),
    factory="modules.families.sd.load:load",
    default_resolution_px=512,
    size_step_px=8,
    latent_factor=8,
    latent_channels=4,
    chunk_tokens=75,
    pipelines=("StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline"),
)
