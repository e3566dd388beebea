"""Pixel diffusion at toy size: one CLIP text encoder and a UNet on three channels of pixels."""

from __future__ import annotations

from typing import Literal

from modules.families.parts.diffusion_settings import LatentDiffusionSettings
from modules.families.parts.part_classes import CLIP_TEXT, UNET, clip_prompts
from modules.families.spec import FamilySpec, LatentSpec, PartSpec


class ToySettings(LatentDiffusionSettings):
    """Pixel diffusion at toy size."""

    name: Literal["toy_pixel"] = "toy_pixel"


TOY = FamilySpec(
    name="toy_pixel",
    label="Toy pixel diffusion",
    settings=ToySettings,
    parts=(
        PartSpec("unet", "UNet", "denoiser", UNET),
        PartSpec("text_encoder", "Text encoder", "text_encoder", CLIP_TEXT),
    ),
    default_resolution_px=32,
    size_step_px=2,
    latents=LatentSpec(channels=3, factor=1),
    text=clip_prompts(),
)
