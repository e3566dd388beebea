"""Stable Diffusion 1.x and 2.x (Rombach et al. 2022): one CLIP text encoder, a UNet, a VAE of factor 8."""

from typing import Literal

from modules.data.input_names import INPAINTING
from modules.families.parts.diffusion_settings import LatentDiffusionSettings
from modules.families.parts.part_classes import CLIP_TEXT, DISTILLED_DDPM, KL_VAE, UNET, clip_prompts
from modules.families.spec import FamilySpec, LatentSpec, PartSpec


class SdSettings(LatentDiffusionSettings):
    """Small (0.9 billion weights), for images of 512 to 768 pixels: trains on almost any card."""

    name: Literal["sd"] = "sd"


SD = FamilySpec(
    name="sd",
    label="Stable Diffusion 1 and 2",
    settings=SdSettings,
    parts=(
        PartSpec("unet", "UNet", "denoiser", UNET),
        PartSpec("text_encoder", "Text encoder", "text_encoder", CLIP_TEXT),
        PartSpec("vae", "VAE", "vae", KL_VAE, trainable=False),
    ),
    default_resolution_px=512,
    size_step_px=8,
    latents=LatentSpec(channels=4, factor=8),
    text=clip_prompts(text_encoder="emp_params"),
    variants={"inpainting": 5, "depth": 1},
    inputs={"inpainting": INPAINTING, "depth": ("depth",)},
    distilled=DISTILLED_DDPM,
    released="2022-08",
    ai_toolkit=("sd1", "sd15", "sd2"),
)
