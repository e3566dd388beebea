"""The rotations of OFT: from what a file holds to orthogonal blocks, and to the change of a weight. In float32.

A skew-symmetric Q generates a rotation R by the Cayley transform `R = (I + Q) (I - Q)^-1` (Qiu et al. 2023, section
3.1), or by the first five terms of its series, `I + 2 Q + 2 Q^2 + 2 Q^3 + Q^4` (Qiu et al. 2025, section 4), which is
what the programs that read those files compute. Here it is always `R - I`: of small rotations little would be left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modules.formats.adapter_names import OFT_BLOCKS, OFT_VECTORS, RESCALE, side_of_vectors


def generators(factors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the skew-symmetric generators of a layer's rotations, (blocks, size, size), in float32.

    Raises RuntimeError or IndexError if the factors are none.
    """
    if OFT_BLOCKS in factors:
        blocks = factors[OFT_BLOCKS].float()
        return blocks - blocks.transpose(-1, -2)
    values = factors[OFT_VECTORS].float()
    side = side_of_vectors(values.shape[1])
    rows, columns = torch.triu_indices(side, side, 1, device=values.device)
    upper = values.new_zeros(values.shape[0], side, side).index_put((_block_numbers(values), rows, columns), values)
    return upper - upper.transpose(-1, -2)


def _block_numbers(values: torch.Tensor) -> torch.Tensor:
    """Return the numbers of the blocks as an index beside those of the values in them."""
    return torch.arange(values.shape[0], device=values.device)[:, None]


def within(generators_KNN: torch.Tensor, limit: float) -> torch.Tensor:
    """Return generators with a norm, of all blocks of a layer together, of at most `limit`; 0 is no limit (COFT)."""
    if not limit:
        return generators_KNN
    norm: torch.Tensor = torch.linalg.vector_norm(generators_KNN)
    return generators_KNN * (limit / norm.clamp_min(limit))


class CayleyTransform(torch.autograd.Function):
    """`R - I` from Q. It keeps its result alone: with `S = R + I`, which is `2 (I - Q)^-1`, dR is `S dQ S / 2`."""

    @staticmethod
    def forward(ctx: Any, generators_KNN: torch.Tensor) -> torch.Tensor:
        """Return `2 Q (I - Q)^-1`."""
        eye = torch.eye(generators_KNN.shape[-1], device=generators_KNN.device, dtype=generators_KNN.dtype)
        turned: torch.Tensor = torch.linalg.solve(eye - generators_KNN, 2 * generators_KNN, left=False)
        ctx.save_for_backward(turned)
        return turned

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """Return the gradient of Q."""
        (turned,) = ctx.saved_tensors
        eye = torch.eye(turned.shape[-1], device=turned.device, dtype=turned.dtype)
        both = (turned + 2 * eye).transpose(-1, -2)
        product: torch.Tensor = both @ grad @ both / 2
        return product


def cayley(generators_KNN: torch.Tensor) -> torch.Tensor:
    """Return R - I of the Cayley transform."""
    turned: torch.Tensor = CayleyTransform.apply(generators_KNN)  # type: ignore[no-untyped-call]
    return turned


def cayley_series(generators_KNN: torch.Tensor) -> torch.Tensor:
    """Return R - I of the first five terms of the Cayley transform's series: `2 Q + 2 Q^2 + 2 Q^3 + Q^4`."""
    square = generators_KNN @ generators_KNN
    cube = square @ generators_KNN
    return 2 * (generators_KNN + square + cube) + cube @ generators_KNN


def rotated(rotations_KNN: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the vectors along an axis of x, each block times its rotation (or R - I): `y_m = sum_n x_n R_nm`."""
    num_blocks, side = rotations_KNN.shape[:2]
    if axis in (-1, x.ndim - 1):
        return torch.einsum("...kn,knm->...km", x.unflatten(-1, (num_blocks, side)), rotations_KNN).flatten(-2)
    blocks = x.unflatten(axis, (num_blocks, side)).flatten(axis + 2)
    turned = torch.matmul(rotations_KNN.transpose(-1, -2), blocks)
    return turned.reshape(x.shape)


def spread(rotations_KNN: torch.Tensor, size: int) -> torch.Tensor:
    """Return rotations with a block for all `size` channels: a single block is shared by them. Raises RuntimeError if
    they are for another number of channels.
    """
    num_blocks, side, _ = rotations_KNN.shape
    if num_blocks == 1 and size % side == 0:
        return rotations_KNN.expand(size // side, side, side)
    if num_blocks * side != size:
        raise RuntimeError(f"{num_blocks} blocks of {side} for {size} channels")
    return rotations_KNN


def oft_change(factors: Mapping[str, torch.Tensor], alpha: float | None, weight: torch.Tensor) -> torch.Tensor:
    """Return what OFT adds to a weight (out, in, kernel), from the factors of a file, in float32.

    With blocks for the outputs alpha is LyCORIS' constraint: the norm of the generators is at most alpha times the
    number of outputs. Raises RuntimeError if the factors do not fit the weight.
    """
    matrix = weight.float().flatten(1)
    if OFT_BLOCKS not in factors:
        turned = spread(cayley_series(generators(factors)), matrix.shape[1])
        return rotated(turned.transpose(-1, -2), matrix, -1).reshape(weight.shape)
    turned = spread(cayley(within(generators(factors), (alpha or 0.0) * matrix.shape[0])), matrix.shape[0])
    change = rotated(turned, matrix, 0)
    if RESCALE in factors:
        scales = factors[RESCALE].float().reshape(-1, 1)
        change = scales * change + (scales - 1) * matrix
    return change.reshape(weight.shape)
