"""Latents as a sequence of tokens, each of a square of 2 x 2 latents, as diffusers' `FluxPipeline` packs them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_SIDE = 2


def pack(latents_BCHW: torch.Tensor) -> torch.Tensor:
    """Return latents as tokens (B, H/2 * W/2, 4 C), row by row."""
    return torch.nn.functional.pixel_unshuffle(latents_BCHW, _SIDE).flatten(2).transpose(1, 2)


def unpack(tokens_BLC: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return tokens as latents (B, C, H, W) of a height and a width."""
    patches_BCHW = tokens_BLC.transpose(1, 2).unflatten(2, (height // _SIDE, width // _SIDE))
    return torch.nn.functional.pixel_shuffle(patches_BCHW, _SIDE)


def with_references(
    latents_BCHW: torch.Tensor, references: Sequence[torch.Tensor], *, step: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens (B, L, 4 C) of latents and their positions (L, 3), and of reference images behind them.

    The first number of an image's positions is 0, the first reference's is `step`, then 2 `step` and so on.
    """
    tokens, ids = [pack(latents_BCHW)], [image_ids(latents_BCHW)]
    for number, reference_BCHW in enumerate(references, start=1):
        tokens.append(pack(reference_BCHW))
        ids.append(image_ids(reference_BCHW))
        ids[-1][:, 0] = number * step
    return torch.cat(tokens, dim=1), torch.cat(ids)


def image_ids(latents_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the positions (H/2 * W/2, 3) of tokens on the device of latents: 0, row and column."""
    device = latents_BCHW.device
    sides = (torch.arange(s // _SIDE, dtype=torch.float32, device=device) for s in latents_BCHW.shape[-2:])
    rows_RC, columns_RC = torch.meshgrid(*sides, indexing="ij")
    return torch.stack([torch.zeros_like(rows_RC), rows_RC, columns_RC], dim=-1).flatten(0, 1)
