"""The positions of PixArt's transformer, which its files lack, and kernels for its self-attention."""

from __future__ import annotations

from typing import Any

from diffusers.models.embeddings import get_2d_sincos_pos_embed

from modules.families.attention import ATTENTIONS
from modules.families.parts.attention_processor import Kernel, KernelProcessor
from modules.system.factories import load_factory


def fill_positions(transformer: Any) -> None:
    """Make the buffer that files do not have: the positions of the patches of an image of the config's size."""
    embed = transformer.pos_embed
    positions_LD = get_2d_sincos_pos_embed(
        transformer.inner_dim,
        embed.base_size,
        base_size=embed.base_size,
        interpolation_scale=embed.interpolation_scale,
        output_type="pt",
    )
    embed.pos_embed = positions_LD.float()[None]


def set_self_attention(transformer: Any, name: str) -> None:
    """Give the self-attention of every block a processor with an implementation's kernel.

    The attention to a prompt, a few hundred tokens, keeps PyTorch's, which has a mask.
    """
    kernel: Kernel = load_factory(ATTENTIONS[name].kernel)
    for block in transformer.transformer_blocks:
        block.attn1.set_processor(KernelProcessor(kernel))
