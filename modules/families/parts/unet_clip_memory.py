"""The memory walk of models with a UNet and CLIP text encoders, on latents or on pixels."""

from __future__ import annotations

import re
from dataclasses import replace

from modules.families.parts.clip_walk import clip_pass
from modules.families.parts.part_classes import CLIP_CHUNK_TOKENS
from modules.families.parts.unet_walk import unet_pass
from modules.families.walks import Configs, DenoiserPass, PartConfig, TextSize
from modules.memory.tape import Array
from modules.memory.walk import Walk

_TOKENS = CLIP_CHUNK_TOKENS + 2  # with the start and the end
UNET_BLOCKS = re.compile(r".*\b(transformer_blocks|resnets)\.\d+\.")
CLIP_BLOCKS = re.compile(r".*\blayers\.\d+\.")
VAE_BLOCKS = re.compile(r".*\b(attentions|resnets)\.\d+\.")
"""The name prefixes of the blocks that are checkpointed and offloaded (`forwards.py`)."""


def clip_text(walk: Walk, part: str, config: PartConfig, *, chunks: int) -> Array:
    """Walk through a CLIP encoder without a pooled state."""
    return clip_pass(walk, config, prompts=chunks, has_projection=False)


def unet_denoiser(latent_factor: int) -> DenoiserPass:
    """Return the walk through a UNet whose input is smaller than the image by a factor."""

    def walk_through(
        walk: Walk, config: PartConfig, *, batch: int, width_px: int, height_px: int, text: Array | None
    ) -> Array:
        states = None
        if text is not None:  # the states of all encoders are concatenated
            states = replace(walk.new((batch, _TOKENS, int(config["cross_attention_dim"]))), needs_grad=text.needs_grad)
        size = (height_px // latent_factor, width_px // latent_factor)
        return unet_pass(walk, config, batch=batch, latents=size, tokens=_TOKENS, text=states)

    return walk_through


def text_size(configs: Configs) -> TextSize:
    """Return the size of a chunk's states: the width that the UNet reads, and the pooled width of a second encoder."""
    pooled = configs.get("text_encoder_2", {}).get("projection_dim", 0)
    return TextSize(_TOKENS, int(configs["unet"]["cross_attention_dim"]), int(pooled))


def last_layers(config: PartConfig, skipped: int) -> tuple[str, ...]:
    """Return the skipped layers of an encoder, which no gradient reaches."""
    num_layers = int(str(config["num_hidden_layers"]))
    return tuple(f"encoder.layers.{i}." for i in range(num_layers - skipped, num_layers))
