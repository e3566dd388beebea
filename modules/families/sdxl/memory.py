"""The memory walk of SDXL (Podell et al. 2023)."""

from __future__ import annotations

from modules.families.parts.clip_walk import clip_pass
from modules.families.parts.unet_clip_memory import (
    CLIP_BLOCKS,
    UNET_BLOCKS,
    VAE_BLOCKS,
    last_layers,
    text_size,
    unet_denoiser,
)
from modules.families.parts.vae_walk import decode_pass, encode_pass
from modules.families.sdxl.spec import SDXL
from modules.families.walks import FamilyMemory, PartConfig
from modules.memory.tape import Array
from modules.memory.walk import Walk


def _text(walk: Walk, part: str, config: PartConfig, *, chunks: int) -> Array:
    return clip_pass(walk, config, prompts=chunks, has_projection=part == "text_encoder_2")


def _unreached(part: str, config: PartConfig, skipped_layers: int) -> tuple[str, ...]:
    """Return the first encoder's last layer and norm, and the layers that clip skip leaves out beyond them; the pooled
    state of the second encoder reaches all its layers.
    """
    if part != "text_encoder":
        return ()
    return (*last_layers(config, skipped_layers + 1), "final_layer_norm")


MEMORY = FamilyMemory(
    blocks={"unet": UNET_BLOCKS, "text_encoder": CLIP_BLOCKS, "text_encoder_2": CLIP_BLOCKS, "vae": VAE_BLOCKS},
    text=_text,
    denoise=unet_denoiser(SDXL.latents.factor),
    text_size=text_size,
    unreached=_unreached,
    encode=encode_pass,
    decode=decode_pass,
)
