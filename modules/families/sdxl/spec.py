"""Stable Diffusion XL (Podell et al. 2023): two CLIP encoders, a UNet with size conditioning, a VAE of factor 8."""

from __future__ import annotations

from modules.data.inputs import INPAINTING
from modules.families.parts.part_classes import (
    CLIP_TEXT,
    CLIP_TEXT_WITH_PROJECTION,
    DISTILLED_DDPM,
    KL_VAE,
    UNET,
    clip_prompts,
)
from modules.families.sdxl.settings import SdxlSettings
from modules.families.spec import FamilySpec, LatentSpec, PartSpec

SDXL = FamilySpec(
    name="sdxl",
    label="Stable Diffusion XL",
    settings=SdxlSettings,
    parts=(
        PartSpec("unet", "UNet", "denoiser", UNET),
        PartSpec("text_encoder", "Text encoder 1 (CLIP-L)", "text_encoder", CLIP_TEXT),
        PartSpec("text_encoder_2", "Text encoder 2 (OpenCLIP bigG)", "text_encoder", CLIP_TEXT_WITH_PROJECTION),
        PartSpec("vae", "VAE", "vae", KL_VAE, trainable=False),
    ),
    factory="modules.families.sdxl.model:load",
    default_resolution_px=1024,
    size_step_px=8,
    latents=LatentSpec(channels=4, factor=8, overflows_in_float16=True),
    text=clip_prompts(text_encoder="clip_l", text_encoder_2="clip_g"),
    files="modules.families.sdxl.files:FILES",
    pipelines=(
        "StableDiffusionXLPipeline",
        "StableDiffusionXLImg2ImgPipeline",
        "StableDiffusionXLInpaintPipeline",
    ),
    variants={"inpainting": 5},
    inputs={"inpainting": INPAINTING},
    distilled=DISTILLED_DDPM,
    released="2023-07",
    ai_toolkit=("sdxl",),
)
