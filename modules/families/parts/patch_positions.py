"""The positions of diffusers' patch embeddings (`PatchEmbed`), which files do not have."""

from __future__ import annotations

from typing import Any


def fill_patch_positions(embed: Any, width: int) -> None:
    """Make the buffer with the positions of the patches of an image of the config's size, if there is one.

    `width` is the width of the embedding.
    """
    if embed.pos_embed is None:
        return
    from diffusers.models.embeddings import get_2d_sincos_pos_embed  # the window reads the files' records without it

    positions_LD = get_2d_sincos_pos_embed(
        width,
        embed.base_size,
        base_size=embed.base_size,
        interpolation_scale=embed.interpolation_scale,
        output_type="pt",
    )
    embed.pos_embed = positions_LD.float()[None]
