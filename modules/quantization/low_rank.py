"""The low-rank product beside a quantized weight (SVDQuant, Li et al. 2024, section 4.2).

The largest singular values of the weight W are kept in a product U V of two thin matrices, and only the rest, W - U V,
is quantized: it has smaller outliers, so its scales are finer.
"""

from __future__ import annotations

import torch

from modules.quantization.spec import Residual
from modules.system.dtypes import dtype_of

_OVERSAMPLING, _ITERATIONS = 8, 4  # Halko et al. 2011, algorithm 4.4, with what its section 1.3 recommends
_EXACT_UP_TO = 256
_SEED = 20_411


def low_rank_product(weight: torch.Tensor, residual: Residual) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the product of a weight (out, in) as V (rank, in) and U (out, rank), in the dtype of the residual.

    The same weight always has the same product: the draws of the decomposition have a seed of their own.
    """
    matrix, rank = weight.float(), residual.rank_of((weight.shape[0], weight.shape[1]))
    left, sizes, right = _principal(matrix, rank)
    roots = sizes.sqrt()
    dtype = dtype_of(residual.dtype)
    return (roots[:, None] * right).to(dtype).contiguous(), (left * roots).to(dtype).contiguous()


def _principal(matrix: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the largest singular values and their vectors: (out, rank), (rank,) and (rank, in)."""
    if min(matrix.shape) <= max(_EXACT_UP_TO, rank + _OVERSAMPLING):
        left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
        return left[:, :rank], sizes[:rank], right[:rank]
    draws = torch.randn(matrix.shape[1], rank + _OVERSAMPLING, generator=torch.Generator().manual_seed(_SEED))
    basis = torch.linalg.qr(matrix @ draws.to(matrix.device))[0]
    for _ in range(_ITERATIONS):
        basis = torch.linalg.qr(matrix @ torch.linalg.qr(matrix.T @ basis)[0])[0]
    left, sizes, right = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
    return (basis @ left)[:, :rank], sizes[:rank], right[:rank]
