"""Packing and unpacking the weights of linear layers: rows of 8 bits, and NF4 blocks; low-rank products of the rest.

All of it is plain torch, so it computes on any device and packs the same weight to the same bits anywhere. NF4 has the
layout of bitsandbytes, whose kernels unpack it faster on a GPU.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import importlib.util
import itertools
import logging
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from modules.data.cache.store import BrokenEntryError, EntryStore
from modules.formats.gguf_header import BlockType
from modules.formats.gguf_tensors import unpack_blocks
from modules.quantization.known_once import known_once
from modules.quantization.registry import BLOCK_WEIGHTS, QuantizedFormat, Residual, Rounding
from modules.system.devices import dtype_of
from modules.system.factories import load_factory

_CACHE_VERSION = 1  # of its entries
_INT8_MAX = 127.0
_FLOAT8 = torch.float8_e4m3fn
_FLOAT8_MAX = 448.0
_TINY = 1e-12  # the scale of a row of zeros

_OVERSAMPLING, _ITERATIONS = 8, 4  # Halko et al. 2011, algorithm 4.4, with what its section 1.3 recommends
_EXACT_UP_TO = 256
_SEED = 20_411

_REST_BITS = 20  # of a float32 after the sign, the exponent, and three bits of the fraction
_IN_CACHE = 2**17  # weights whose values of a step stay in a core's cache
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
        return scale_values(stored.packed, stored.scales, dtype)

    def round(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32 rows (..., k) rounded to 8 bits, and their scales (..., 1)."""
        scales = self.scales(rows.abs().amax(-1, keepdim=True))
        values = (rows / scales).clamp_(-self.largest, self.largest)
        return (values if self.dtype.is_floating_point else values.round_()).to(self.dtype), scales

    def scales(self, largest: torch.Tensor) -> torch.Tensor:
        """Return the float32 scales of rows whose largest values (..., 1) these are."""
        return (largest / self.largest).clamp_min(_TINY)


def scale_values(values: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return values times float32 scales that broadcast to them, rounded once from float32 to a dtype.

    Kernels of a GPU convert what they read and write. On a CPU a product into another dtype takes longer than a product
    and a cast, and a compiler makes one kernel of both.
    """
    is_float8 = values.dtype.is_floating_point and values.itemsize == 1  # which torch multiplies with nothing
    if not is_eager_gpu(values):
        return ((values.float() if is_float8 else values) * scales).to(dtype)
    if is_float8:
        values = out = values.to(dtype)  # exact
    else:
        out = torch.empty(values.shape, dtype=dtype, device=values.device)
    return torch.mul(values, scales, out=out)


def is_eager_gpu(tensor: torch.Tensor) -> bool:
    """Return whether each operation is a kernel that converts what it reads and writes, and none is fused."""
    return tensor.is_cuda and not torch.compiler.is_compiling()


def _nearest_codes(values: torch.Tensor, lowest: torch.Tensor, middles: torch.Tensor) -> torch.Tensor:
    """Return the codes (n,) of the nearest values of NF4, the lower one of a value in the middle.

    The first bits of a float32 are the cell that it is in, which contains one middle at most: looking up the lowest
    code of the cell and its middle takes a fifth of the time of comparing with all middles.
    """
    cells = (values.view(torch.int32) >> _REST_BITS).add_(len(lowest) // 2)
    return lowest.index_select(0, cells).add_(values > middles.index_select(0, cells))


@functools.cache
def _cells() -> tuple[Sequence[int], Sequence[float]]:
    """Return the lowest code of each cell of float32 numbers, and the middle in it (infinite without one)."""
    middles = [(a + b) / 2 for a, b in itertools.pairwise(_NF4)]
    lowest, inside = [], []
    half = 2 ** (31 - _REST_BITS)
    for cell in range(-half, half):
        first = cell << _REST_BITS
        ends = struct.unpack("2f", struct.pack("2i", first, first | (2**_REST_BITS - 1)))
        low, high = sorted(0 if math.isnan(end) else bisect.bisect_left(middles, end) for end in ends)
        lowest.append(low)
        inside.append(middles[low] if high > low else math.inf)
    return lowest, inside


class Nf4Blocks:
    """Two weights per byte, (n / 2,), and a scale for every 64 weights, (n / 64,)."""

    def pack(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the codes of the nearest values, the first of two in the upper half of a byte, and the scales."""
        flat = weight.flatten()
        num_blocks = math.ceil(len(flat) / BLOCK_WEIGHTS)
        packed = torch.empty(num_blocks * BLOCK_WEIGHTS // 2, dtype=torch.uint8, device=weight.device)
        scales = torch.empty(num_blocks, device=weight.device)
        lowest, middles = _cells()
        cells = torch.tensor(lowest, dtype=torch.uint8).to(weight.device), torch.tensor(middles).to(weight.device)
        step = _IN_CACHE // BLOCK_WEIGHTS if weight.device.type == "cpu" else _PACKED_AT_ONCE // BLOCK_WEIGHTS
        for start in range(0, num_blocks, step):
            some = flat[start * BLOCK_WEIGHTS : (start + step) * BLOCK_WEIGHTS].float()
            blocks = torch.nn.functional.pad(some, (0, -len(some) % BLOCK_WEIGHTS)).view(-1, BLOCK_WEIGHTS)
            largest = blocks.abs().amax(-1)
            codes = _nearest_codes((blocks / largest.clamp_min(_TINY)[:, None]).flatten(), *cells).view(-1, 2)
            packed[start * BLOCK_WEIGHTS // 2 : (start + step) * BLOCK_WEIGHTS // 2] = (codes[:, 0] << 4) | codes[:, 1]
            scales[start : start + step] = largest
        return packed, scales

    def table(self) -> torch.Tensor:
        """Return the two values of each byte, (256, 2)."""
        values, codes = torch.tensor(_NF4), torch.arange(256)
        return torch.stack([values[codes >> 4], values[codes & 15]], dim=1)

    def unpack(self, stored: PackedData, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Return the weight in a dtype."""
        if stored.packed.is_cuda and math.prod(shape) % BLOCK_WEIGHTS == 0 and _has_kernels(stored.packed.device):
            return unpack_by_bitsandbytes(stored, shape, dtype)
        assert stored.table is not None
        pairs = torch.nn.functional.embedding(stored.packed.int(), stored.table)
        blocks = scale_values(pairs.view(-1, BLOCK_WEIGHTS), stored.scales[:, None], dtype)
        return blocks.flatten()[: math.prod(shape)].view(shape)


@known_once
def _has_kernels(device: torch.device) -> bool:
    """Return whether bitsandbytes is installed and unpacks a block on a device; the log reports why not."""
    if importlib.util.find_spec("bitsandbytes") is None:
        return False
    packed = torch.zeros(BLOCK_WEIGHTS // 2, dtype=torch.uint8, device=device)
    stored = PackedData(packed, torch.ones(1, device=device), NF4_BLOCKS.table().to(device))
    try:
        unpack_by_bitsandbytes(stored, (1, BLOCK_WEIGHTS), torch.float16)
    except Exception as error:  # noqa: BLE001 - what a broken library raises is not known
        logger.warning(
            "bitsandbytes is installed but does not work on %s, so PyTorch unpacks nfloat4 weights, which takes "
            "longer. Install a version for this GPU and driver, or remove it. (%s: %s)",
            device, type(error).__name__, error,
        )  # fmt: skip
        return False
    return True


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
    """The bytes of blocks of one type. Their scales are inside: `PackedData.scales` is empty."""

    def __init__(self, kind: BlockType) -> None:
        self.kind = kind

    def pack(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Raise TypeError: the weights of a file are packed already."""
        raise TypeError(f"weights are never packed to {self.kind.name}")

    def table(self) -> None:
        """Return nothing: there are no constants."""
        return

    def unpack(self, stored: PackedData, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Return the weight in a dtype."""
        return unpack_blocks(stored.packed, self.kind, dtype).view(shape)


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
    """Return a weight (out, in) packed in a format; with a `residual`, the cache is read first, or gets a new entry."""
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
