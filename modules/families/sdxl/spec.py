"""Stable Diffusion XL (Podell et al. 2023): two CLIP encoders, a UNet with size conditioning, a VAE of factor 8."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Interval

from modules.data.input_names import INPAINTING
from modules.families.parts import part_classes
from modules.families.parts.diffusion_settings import CLIP_SKIP_2, LatentDiffusionSettings, last_layers, skip_of
from modules.families.spec import FamilySpec, LatentSpec, PartSpec


class SdxlSettings(LatentDiffusionSettings):
    """2.6 billion weights, for images of 1024 pixels; many models are based on it."""

    name: Literal["sdxl"] = "sdxl"
    clip_skip_2: Annotated[int | None, *Interval(ge=0, le=31), CLIP_SKIP_2] = None

    def skipped_layers(self, encoder: str) -> int:
        """Return the clip skip of one of the text encoders."""
        return skip_of(encoder, self.clip_skip, self.clip_skip_2)

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the last layer and the norm of the first encoder, and the layers that clip skip leaves out.

        The pooled state of the second encoder reaches all of its layers.
        """
        if part != "text_encoder":
            return ()
        return (*last_layers(config, self.skipped_layers(part) + 1), "final_layer_norm")


SDXL = FamilySpec(
    name="sdxl",
    label="Stable Diffusion XL",
    settings=SdxlSettings,
    parts=(
        PartSpec("unet", "UNet", "denoiser", part_classes.UNET),
        PartSpec("text_encoder", "Text encoder 1 (CLIP-L)", "text_encoder", part_classes.CLIP_TEXT),
        PartSpec(
            "text_encoder_2", "Text encoder 2 (OpenCLIP bigG)", "text_encoder", part_classes.CLIP_TEXT_WITH_PROJECTION
        ),
        PartSpec("vae", "VAE", "vae", part_classes.KL_VAE, trainable=False),
    ),
    size_step_px=8,
    latents=LatentSpec(channels=4, factor=8, overflows_in_float16=True),
    text=part_classes.clip_prompts(text_encoder="clip_l", text_encoder_2="clip_g"),
    variants={"inpainting": 5},
    inputs={"inpainting": INPAINTING},
    distilled=part_classes.DISTILLED_DDPM,
    released="2023-07",
    ai_toolkit=("sdxl",),
)
