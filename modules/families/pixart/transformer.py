"""The positions of PixArt's transformer, which its files lack, and kernels for its self-attention."""

from __future__ import annotations

from typing import Any

from modules.families.attention import ATTENTIONS
from modules.families.parts.attention_processor import Kernel, KernelProcessor
from modules.families.parts.patch_positions import fill_patch_positions
from modules.system.factories import load_factory


def fill_positions(transformer: Any) -> None:
    """Make the buffer that files do not have: the positions of the patches of an image of the config's size."""
    fill_patch_positions(transformer.pos_embed, transformer.inner_dim)


def set_self_attention(transformer: Any, name: str) -> None:
    """Give the self-attention of every block a processor with an implementation's kernel.

    The attention to a prompt, a few hundred tokens, keeps PyTorch's, which has a mask.
    """
    kernel: Kernel = load_factory(ATTENTIONS[name].kernel)
    for block in transformer.transformer_blocks:
        block.attn1.set_processor(KernelProcessor(kernel))
