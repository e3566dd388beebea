"""Packing and unpacking the weights of linear layers: rows of 8 bits, and NF4 blocks; low-rank products of the rest.

All of it is plain torch, so it computes on any device and packs the same weight to the same bits anywhere. NF4 has the
layout of bitsandbytes, whose kernels unpack it faster on a GPU.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from modules.data.cache.store import BrokenEntryError, EntryStore
from modules.formats.gguf_header import BlockType
from modules.formats.gguf_tensors import block_function, unpack_blocks
from modules.quantization.registry import BLOCK_WEIGHTS, QuantizedFormat, Residual, Rounding
from modules.system.devices import dtype_of
from modules.system.factories import load_factory

_CACHE_VERSION = 1  # of its entries
_INT8_MAX = 127.0
_FLOAT8 = torch.float8_e4m3fn
_FLOAT8_MAX = 448.0
_TINY = 1e-12  # the scale of a row of zeros
_HAS_BITSANDBYTES = importlib.util.find_spec("bitsandbytes") is not None

_OVERSAMPLING, _ITERATIONS = 8, 4  # Halko et al. 2011, algorithm 4.4, with what its section 1.3 recommends
_EXACT_UP_TO = 256
_SEED = 20_411

_PACKED_AT_ONCE = 2**20
"""Weights: packing a whole layer in float32 would take many times its memory."""

logger = logging.getLogger("darkroom.quantization")

# Dettmers et al. 2023, appendix E.
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


class PackedData(NamedTuple):
    """A packed weight, its scales in float32, and the constants for unpacking it."""

    packed: torch.Tensor
    scales: torch.Tensor
    table: torch.Tensor | None = None


class Packing(Protocol):
    """How the weight of a layer is packed."""

    def pack(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a weight (out, in) as packed values and their scales in float32."""
        ...

    def table(self) -> torch.Tensor | None:
        """Return the constants that unpacking needs, if any: they are kept where the weight is."""
        ...

    def unpack(self, stored: PackedData, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Return the weight (out, in) in a dtype, rounded once from float32."""
        ...


class Rows:
    """One byte per weight, and a scale for each row: (out, in) and (out, 1)."""

    def __init__(self, *, dtype: torch.dtype, largest: float) -> None:
        self.dtype, self.largest = dtype, largest

    def pack(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rounded rows and their scales."""
        packed = torch.empty(weight.shape, dtype=self.dtype, device=weight.device)
        scales = torch.empty(len(weight), 1, device=weight.device)
        step = max(1, _PACKED_AT_ONCE // weight.shape[1])
        for start in range(0, len(weight), step):  # a row depends on no other one
            rows = slice(start, start + step)
            packed[rows], scales[rows] = self.round(weight[rows].float())
        return packed, scales

    def table(self) -> None:
        """Return nothing: there are no constants."""
        return

    def unpack(self, stored: PackedData, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Return the weight in a dtype.

        On a GPU int8 is unpacked by one kernel (3 bytes a weight are moved for 16 bits), float8 by two (7): torch has
        no product of it, but 16 bits contain all its values.
        """
        return scaled(stored.packed, stored.scales, dtype)

    def round(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32 rows (..., k) rounded to 8 bits, and their scales (..., 1)."""
        scales = self.scales(rows.abs().amax(-1, keepdim=True))
        values = (rows / scales).clamp_(-self.largest, self.largest)
        return (values if self.dtype.is_floating_point else values.round_()).to(self.dtype), scales

    def scales(self, largest: torch.Tensor) -> torch.Tensor:
        """Return the float32 scales of rows whose largest values (..., 1) these are."""
        return (largest / self.largest).clamp_min(_TINY)


def scaled(values: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return values times float32 scales that broadcast to them, rounded once from float32 to a dtype.

    Kernels of a GPU convert what they read and write. On a CPU a product into another dtype takes longer than a product
    and a cast, and a compiler makes one kernel of both.
    """
    is_float8 = values.dtype.is_floating_point and values.itemsize == 1  # which torch multiplies with nothing
    if not values.is_cuda or torch.compiler.is_compiling():
        return ((values.float() if is_float8 else values) * scales).to(dtype)
    if is_float8:
        values = values.to(dtype)  # exact
    return torch.mul(values, scales, out=torch.empty(values.shape, dtype=dtype, device=values.device))


class Nf4Blocks:
    """Two weights per byte, (n / 2,), and a scale for every 64 weights, (n / 64,)."""

    def pack(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the codes of the nearest values, the first of two in the upper half of a byte, and the scales."""
        flat = weight.float().flatten()
        blocks = torch.nn.functional.pad(flat, (0, -len(flat) % BLOCK_WEIGHTS)).reshape(-1, BLOCK_WEIGHTS)
        scales = blocks.abs().amax(-1)
        values = torch.tensor(_NF4, device=weight.device)
        middles = (values[1:] + values[:-1]) / 2
        scaled = (blocks / scales.clamp_min(_TINY)[:, None]).flatten()
        codes = torch.zeros(scaled.shape, dtype=torch.uint8, device=weight.device)
        for middle in middles:  # faster than torch.bucketize
            codes += scaled > middle
        return (codes[0::2] << 4) | codes[1::2], scales

    def table(self) -> torch.Tensor:
        """Return the two values of each byte, (256, 2)."""
        values, codes = torch.tensor(_NF4), torch.arange(256)
        return torch.stack([values[codes >> 4], values[codes & 15]], dim=1)

    def unpack(self, stored: PackedData, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Return the weight in a dtype."""
        if stored.packed.is_cuda and _HAS_BITSANDBYTES and math.prod(shape) % BLOCK_WEIGHTS == 0:
            return unpack_by_bitsandbytes(stored, shape, dtype)
        assert stored.table is not None
        pairs = torch.nn.functional.embedding(stored.packed.int(), stored.table)
        blocks = scaled(pairs.view(-1, BLOCK_WEIGHTS), stored.scales[:, None], dtype)
        return blocks.flatten()[: math.prod(shape)].view(shape)


def unpack_by_bitsandbytes(stored: PackedData, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Return an NF4 weight, unpacked by a kernel of bitsandbytes: the same values."""
    assert stored.table is not None
    import bitsandbytes.functional as kernels

    state = kernels.QuantState(
        absmax=stored.scales,
        shape=torch.Size(shape),
        code=stored.table[:16, 1].contiguous(),
        blocksize=BLOCK_WEIGHTS,
        quant_type="nf4",
        dtype=dtype,
    )
    weight: torch.Tensor = kernels.dequantize_4bit(stored.packed[:, None], state)
    return weight


INT8_ROWS = Rows(dtype=torch.int8, largest=_INT8_MAX)
FLOAT8_ROWS = Rows(dtype=_FLOAT8, largest=_FLOAT8_MAX)
ROWS: Mapping[Rounding, Rows] = {"int8": INT8_ROWS, "float8": FLOAT8_ROWS}
NF4_BLOCKS = Nf4Blocks()


class GgufBlocks:
    """The bytes of blocks of one type. Their scales are inside: `Stored.scales` is empty."""

    def __init__(self, kind: BlockType) -> None:
        self.kind = kind
        self._unpack = block_function(kind)

    def pack(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Raise TypeError: the weights of a file are packed already."""
        raise TypeError(f"weights are never packed to {self.kind.name}")

    def table(self) -> None:
        """Return nothing: there are no constants."""
        return

    def unpack(self, stored: PackedData, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Return the weight in a dtype."""
        return unpack_blocks(stored.packed, self.kind, self._unpack, dtype).view(shape)


# The low-rank product of a quantized weight (SVDQuant, Li et al. 2024, section 4.2).
#
# The largest singular values of the weight W are kept in a product U V of two thin matrices, and only the rest,
# W - U V, is quantized: it has smaller outliers, so its scales are finer.


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
    facts = (_CACHE_VERSION, form.packing, residual.dtype, residual.rank, tuple(weight.shape), str(weight.dtype))
    digest = hashlib.sha256(repr(facts).encode())
    digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
