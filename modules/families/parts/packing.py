"""Latents as a sequence of tokens, each of a square of 2 x 2 latents, as diffusers' `FluxPipeline` packs them."""

from __future__ import annotations

import torch

_SIDE = 2


def pack(latents_BCHW: torch.Tensor) -> torch.Tensor:
    """Return latents as tokens (B, H/2 * W/2, 4 C), row by row."""
    return torch.nn.functional.pixel_unshuffle(latents_BCHW, _SIDE).flatten(2).transpose(1, 2)


def unpack(tokens_BLC: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return tokens as latents (B, C, H, W) of a height and a width."""
    patches_BCHW = tokens_BLC.transpose(1, 2).unflatten(2, (height // _SIDE, width // _SIDE))
    return torch.nn.functional.pixel_shuffle(patches_BCHW, _SIDE)


def with_reference(
    tokens_BLC: torch.Tensor, ids_L3: torch.Tensor, reference_BCHW: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and their positions with those of a reference image behind them, as `FluxKontextPipeline` does.

    The first number of the reference's positions is 1.
    """
    reference_L3 = image_ids(reference_BCHW)
    reference_L3[:, 0] = 1.0
    return torch.cat([tokens_BLC, pack(reference_BCHW)], dim=1), torch.cat([ids_L3, reference_L3])


def image_ids(latents_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the positions (H/2 * W/2, 3) of tokens on the device of latents: 0, row and column."""
    rows, columns = (side // _SIDE for side in latents_BCHW.shape[-2:])
    ones_RC = latents_BCHW.new_ones(rows, columns, dtype=torch.float32)
    ids_RC3 = torch.stack([torch.zeros_like(ones_RC), ones_RC.cumsum(0) - 1, ones_RC.cumsum(1) - 1], dim=-1)
    return ids_RC3.flatten(0, 1)
