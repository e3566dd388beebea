"""The memory walk of SD 1.x and 2.x (Rombach et al. 2022)."""

from __future__ import annotations

from modules.families.parts.unet_clip_memory import (
    CLIP_BLOCKS,
    UNET_BLOCKS,
    VAE_BLOCKS,
    clip_text,
    last_layers,
    text_size,
    unet_denoiser,
)
from modules.families.parts.vae_walk import decode_pass, encode_pass
from modules.families.sd.spec import SD
from modules.families.walks import FamilyMemory, PartConfig


def _unreached(part: str, config: PartConfig, skipped_layers: int) -> tuple[str, ...]:
    """Return the encoder's layers that clip skip leaves out (`TextTower.reaches`)."""
    return last_layers(config, skipped_layers) if part == "text_encoder" else ()


MEMORY = FamilyMemory(
    blocks={"unet": UNET_BLOCKS, "text_encoder": CLIP_BLOCKS, "vae": VAE_BLOCKS},
    text=clip_text,
    denoise=unet_denoiser(SD.latents.factor),
    text_size=text_size,
    unreached=_unreached,
    encode=encode_pass,
    decode=decode_pass,
)
