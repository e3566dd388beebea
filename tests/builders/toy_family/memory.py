"""The memory walk of the toy family: the shared one of a UNet and CLIP, on pixels, without a VAE. Torch-free."""

from __future__ import annotations

from modules.families.parts.unet_clip_memory import (
    CLIP_BLOCKS,
    UNET_BLOCKS,
    clip_text,
    last_layers,
    text_size,
    unet_denoiser,
)
from modules.families.walks import FamilyMemory

MEMORY = FamilyMemory(
    blocks={"unet": UNET_BLOCKS, "text_encoder": CLIP_BLOCKS},
    text=clip_text,
    denoise=unet_denoiser(1),
    text_size=text_size,
    unreached=lambda part, config, skipped_layers: (
        last_layers(config, skipped_layers) if part == "text_encoder" else ()
    ),
)
