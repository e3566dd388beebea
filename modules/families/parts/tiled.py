"""Runs a VAE on an image in overlapping tiles and blends the results: it needs the memory of one tile."""

from __future__ import annotations

from collections.abc import Callable

import torch

from modules.data.tiles import Tiling


def run_in_tiles(
    run: Callable[[torch.Tensor], torch.Tensor],
    whole_1CHW: torch.Tensor,
    tiling: Tiling,
    *,
    px_in: int,
    px_out: int,
) -> torch.Tensor:
    """Run a function on overlapping tiles of an input and return their blended results, in float32.

    `px_in` and `px_out` are the pixels of an image that a step of the input and of the result covers. Where tiles
    overlap, each has a weight that falls linearly towards its inner edges.
    """
    height_px, width_px = (side * px_in for side in whole_1CHW.shape[-2:])
    rows, columns = tiling.starts(height_px), tiling.starts(width_px)
    ramps_y = _ramps(rows, min(tiling.side_px, height_px) // px_out, px_out, whole_1CHW)
    ramps_x = _ramps(columns, min(tiling.side_px, width_px) // px_out, px_out, whole_1CHW)
    summed, weights = torch.empty(0), torch.zeros(height_px // px_out, width_px // px_out, device=whole_1CHW.device)
    for top, ramp_y in zip(rows, ramps_y, strict=True):
        for left, ramp_x in zip(columns, ramps_x, strict=True):
            y, x = top // px_in, left // px_in
            side = tiling.side_px // px_in
            made = run(whole_1CHW[..., y : y + side, x : x + side]).float()
            if not summed.numel():
                summed = made.new_zeros(*made.shape[:-2], *weights.shape)
            weight = ramp_y[:, None] * ramp_x
            y, x = top // px_out, left // px_out
            summed[..., y : y + made.shape[-2], x : x + made.shape[-1]] += made * weight
            weights[y : y + made.shape[-2], x : x + made.shape[-1]] += weight
    return summed / weights


def _ramps(starts: list[int], length: int, px_out: int, like: torch.Tensor) -> list[torch.Tensor]:
    """Return the weights along a side of each tile: rising over the overlap with the one before it, falling over the
    overlap with the next.
    """
    ramps = []
    for index, start in enumerate(starts):
        ramp = torch.ones(length, device=like.device)
        if index > 0:
            overlap = length - (start - starts[index - 1]) // px_out
            ramp[:overlap] *= (torch.arange(overlap, device=like.device) + 1) / (overlap + 1)
        if index + 1 < len(starts):
            overlap = length - (starts[index + 1] - start) // px_out
            ramp[length - overlap :] *= (torch.arange(overlap, device=like.device).flip(0) + 1) / (overlap + 1)
        ramps.append(ramp)
    return ramps
