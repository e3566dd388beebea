"""Low-rank forms of the change of a weight, by singular value decomposition in float64.

The best approximation of a matrix by one of rank r keeps its r largest singular values (Eckart and Young 1936).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from modules.adapters.changes import fold_tucker_core
from modules.formats.adapter_layers import AdapterLayer, lora_layer
from modules.formats.adapter_names import DOWN, UP

Shape = tuple[int, ...]
_EXACT_UP_TO = 256  # rows or columns; larger matrices are decomposed by way of their Gram matrix
_SMALLEST = 1e-7  # singular values below this share of the largest are rounding, of weights in float32


@dataclass(frozen=True, slots=True)
class RankChoice:
    """How many ranks a layer keeps: at most `rank` (None: no limit), and as many as keep this share of the `energy`.

    The energy of a matrix is the sum of its squared singular values. `conv_rank` is the limit for kernels larger than
    one pixel; None: the limit of the other layers. A layer keeps at least one rank.
    """

    rank: int | None = None
    energy: float | None = None
    conv_rank: int | None = None

    def of(self, singular_values: torch.Tensor, shape: Shape) -> int:
        """Return how many of the singular values, which are in falling order, a weight of this shape keeps."""
        is_kernel = math.prod(shape[2:]) > 1
        limit = self.conv_rank if is_kernel and self.conv_rank is not None else self.rank
        most = int((singular_values > _SMALLEST * singular_values[0]).sum()) if len(singular_values) else 0
        kept = min(most, limit) if limit is not None else most
        if self.energy is not None and most:
            shares = (singular_values.square().cumsum(0) / singular_values.square().sum()).tolist()
            enough = next((n for n, share in enumerate(shares, 1) if share >= self.energy - 1e-12), most)
            kept = min(kept, enough)
        return max(1, kept)


@dataclass(frozen=True, eq=False)
class LowRank:
    """A change of a weight of shape `shape` as `up @ down`: (out, rank) and (rank, in * kernel)."""

    up: torch.Tensor
    down: torch.Tensor
    shape: Shape

    @property
    def rank(self) -> int:
        """The number of ranks."""
        return int(self.down.shape[0])

    def as_layer(self, part: str, path: str) -> AdapterLayer:
        """Return it as a LoRA layer of strength 1 in float32: its alpha is its rank."""
        out_channels, *rest = self.shape
        down = self.down.float().reshape(self.rank, *rest)
        up = self.up.float().reshape(out_channels, self.rank, *(1 for _ in self.shape[2:]))
        return lora_layer(part, path, down, up, float(self.rank))


@dataclass(frozen=True, eq=False)
class Reduction:
    """A low-rank form, and its loss: the squared norms of the whole change and of the part left out."""

    change: LowRank
    total: float
    lost: float


def low_rank_of(layer: AdapterLayer) -> LowRank:
    """Return a LoRA layer as a product in float64, its strength in `up`; a Tucker core is in `down`.

    Raises RuntimeError or IndexError if the factors do not fit each other.
    """
    plain = fold_tucker_core(layer)
    down, up = plain.factors[DOWN].double(), plain.factors[UP].double()
    shape = (int(up.shape[0]), *(int(n) for n in down.shape[1:]))
    return LowRank(up.flatten(1) * layer.scale, down.flatten(1), shape)


def reduce_product(product: LowRank, choice: RankChoice) -> Reduction:
    """Return the best approximation of a product of two matrices, without multiplying them out."""
    left, up_core = torch.linalg.qr(product.up.double())
    right, down_core = torch.linalg.qr(product.down.double().T)
    u, sizes, v = torch.linalg.svd(up_core @ down_core.T, full_matrices=False)
    return _keep_ranks(left @ u, sizes, v @ right.T, product.shape, choice)


def reduce_matrix(change: torch.Tensor, choice: RankChoice) -> Reduction:
    """Return the best approximation of a change of a weight (out, in, and height and width of a kernel)."""
    matrix, shape = change.flatten(1).double(), tuple(change.shape)
    if min(matrix.shape) <= _EXACT_UP_TO:
        u, sizes, v = torch.linalg.svd(matrix, full_matrices=False)
        return _keep_ranks(u, sizes, v, shape, choice)
    is_wide = matrix.shape[0] <= matrix.shape[1]
    rows = matrix if is_wide else matrix.T
    values, vectors = torch.linalg.eigh(rows @ rows.T)  # in rising order
    sizes, u = values.clamp_min(0).sqrt().flip(0), vectors.flip(1)
    reduction = _keep_ranks(
        u, sizes, (u.T @ rows) / sizes.clamp_min(torch.finfo(sizes.dtype).tiny)[:, None], shape, choice
    )
    if is_wide:
        return reduction
    return Reduction(LowRank(reduction.change.down.T, reduction.change.up.T, shape), reduction.total, reduction.lost)


def _keep_ranks(u: torch.Tensor, sizes: torch.Tensor, v: torch.Tensor, shape: Shape, choice: RankChoice) -> Reduction:
    rank = choice.of(sizes, shape)
    roots = sizes[:rank].sqrt()
    squares = sizes.square()
    change = LowRank(u[:, :rank] * roots, roots[:, None] * v[:rank], shape)
    return Reduction(change, float(squares.sum()), float(squares[rank:].sum()))
