"""The packed weight of one layer, with its low-rank product if there is one; a cache keeps such weights."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass

import torch

from modules.data.cache.store import BrokenEntryError, EntryStore
from modules.quantization.packing import Packing
from modules.quantization.spec import QuantizedFormat, Residual
from modules.system.dtypes import dtype_of
from modules.system.factories import load_factory

# The low-rank product of a quantized weight (SVDQuant, Li et al. 2024, section 4.2).
#
# The largest singular values of the weight W are kept in a product U V of two thin matrices, and only the rest,
# W - U V, is quantized: it has smaller outliers, so its scales are finer.

_OVERSAMPLING, _ITERATIONS = 8, 4  # Halko et al. 2011, algorithm 4.4, with what its section 1.3 recommends
_EXACT_UP_TO = 256
_SEED = 20_411


def low_rank_product(weight: torch.Tensor, residual: Residual) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the product of a weight (out, in) as V (rank, in) and U (out, rank), in the dtype of the residual.

    The same weight always has the same product: the draws of the decomposition have a fixed seed.
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


logger = logging.getLogger("darkroom.quantization")

_VERSION = 1  # of the entries of a cache


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A packed weight (out, in) and its scales; `down` (rank, in) and `up` (out, rank) are added to it, if any."""

    packing: Packing
    packed: torch.Tensor
    scales: torch.Tensor
    down: torch.Tensor | None = None
    up: torch.Tensor | None = None


@torch.no_grad()
def pack_weight(
    weight: torch.Tensor, form: QuantizedFormat, residual: Residual | None = None, cache: EntryStore | None = None
) -> PackedWeight:
    """Return a weight (out, in) packed in a format. With a `residual`, it is read from the cache or written there."""
    packing: Packing = load_factory(form.packing)
    if residual is None:
        return PackedWeight(packing, *packing.pack(weight))
    key = _key(weight, form, residual) if cache is not None else ""
    if cache is not None and cache.has(key):
        try:
            entry = {name: tensor.to(weight.device) for name, tensor in cache.read(key).items()}
            return PackedWeight(packing, **{name: tensor.clone() for name, tensor in entry.items()})
        except (BrokenEntryError, TypeError) as error:
            logger.warning("A damaged entry of the quantization cache is computed again: %s", error)
    down, up = low_rank_product(weight, residual)
    packed, scales = packing.pack(weight.float() - up.float() @ down.float())
    if cache is not None:
        try:
            cache.write(key, {"packed": packed, "scales": scales, "down": down, "up": up})
        except OSError as error:
            logger.warning("The quantization cache cannot be written: %s", error)
    return PackedWeight(packing, packed, scales, down, up)


def _key(weight: torch.Tensor, form: QuantizedFormat, residual: Residual) -> str:
    """Return the key of a weight's entry: its content, and all that decides what it is packed to."""
    facts = (_VERSION, form.packing, residual.dtype, residual.rank, tuple(weight.shape), str(weight.dtype))
    digest = hashlib.sha256(repr(facts).encode())
    digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
