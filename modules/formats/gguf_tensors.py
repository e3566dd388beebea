"""The tensors of a GGUF file: unpacked on demand in plain torch, on any device, or packed as they are stored.

The layouts are ggml's (`ggml-common.h`); the package gguf computes the same values in numpy. diffusers has such
functions, too, but they copy small tables to the device at each call, for which the host waits, and which no CUDA graph
can record. Here every constant is a number in the code.

A block is a row of bytes (n, bytes). The `d` of a block is its scale, `q` are its integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from modules.formats.gguf_header import BlockType, GgufTensor, read_gguf_header
from modules.formats.lazy_tensors import LazyTensor
from modules.formats.safetensors_io import DTYPES
from modules.system.errors import DarkroomError
from modules.system.regular_files import open_regular

Unpack = Callable[[torch.Tensor], torch.Tensor]

# The 16 values of IQ4, from the lowest (ggml's kvalues_iq4nl), eight to a number, a byte each.
_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_IQ4_LOW, _IQ4_HIGH = (
    int.from_bytes(bytes(value & 255 for value in half), "little", signed=True)
    for half in (_IQ4_VALUES[:8], _IQ4_VALUES[8:])
)


def _unpack_q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks[:, :2]) * blocks[:, 2:].view(torch.int8)


def _unpack_q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks[:, :2]) * _as_signed(_fields(blocks[:, 2:], 4), 8)


def _unpack_q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks[:, :2]) * _fields(blocks[:, 4:], 4) + _half(blocks[:, 2:4])


def _unpack_q5_0(blocks: torch.Tensor) -> torch.Tensor:
    q = _fields(blocks[:, 6:], 4) | _byte_by_byte(blocks[:, 2:6], 1) << 4
    return _half(blocks[:, :2]) * _as_signed(q, 16)


def _unpack_q5_1(blocks: torch.Tensor) -> torch.Tensor:
    q = _fields(blocks[:, 8:], 4) | _byte_by_byte(blocks[:, 4:8], 1) << 4
    return _half(blocks[:, :2]) * q + _half(blocks[:, 2:4])


def _unpack_q2_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, d, dmin = blocks[:, :16], _half(blocks[:, 80:82]), _half(blocks[:, 82:])
    q = _fields(blocks[:, 16:80], 2, width=32).view(-1, 16, 16)
    return ((d * (scales & 15))[..., None] * q - (dmin * (scales >> 4))[..., None]).flatten(1)


def _unpack_q3_k(blocks: torch.Tensor) -> torch.Tensor:
    scales = _fields(blocks[:, 96:104], 4) | _fields(blocks[:, 104:108], 2) << 4
    low = _fields(blocks[:, 32:96], 2, width=32)
    high = _fields(blocks[:, :32], 1)
    q = low.view(torch.int8) - ((high ^ 1) << 2).view(torch.int8)
    return ((_half(blocks[:, 108:]) * _as_signed(scales, 32))[..., None] * q.view(-1, 16, 16)).flatten(1)


def _unpack_q4_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = _scales_and_minima(blocks)
    q = _fields(blocks[:, 16:], 4, width=32).view(-1, 8, 32)
    return (scales * q - minima).flatten(1)


def _unpack_q5_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = _scales_and_minima(blocks)
    q = _fields(blocks[:, 48:], 4, width=32) | _fields(blocks[:, 16:48], 1) << 4
    return (scales * q.view(-1, 8, 32) - minima).flatten(1)


def _unpack_q6_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, d = blocks[:, 192:208].view(torch.int8), _half(blocks[:, 208:])
    q = _fields(blocks[:, :128], 4, width=64) | _fields(blocks[:, 128:192], 2, width=32) << 4
    return ((d * scales)[..., None] * _as_signed(q, 32).view(-1, 16, 16)).flatten(1)


def _unpack_iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks[:, :2]) * _iq4_values(_fields(blocks[:, 2:], 4))


def _unpack_iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    scales = _byte_by_byte(blocks[:, 4:8], 4) | _byte_by_byte(blocks[:, 2:4], 2) << 4
    q = _iq4_values(_fields(blocks[:, 8:], 4, width=16)).view(-1, 8, 32)
    return ((_half(blocks[:, :2]) * _as_signed(scales, 32))[..., None] * q).flatten(1)


UNPACK: Mapping[str, Unpack] = {
    "Q4_0": _unpack_q4_0,
    "Q4_1": _unpack_q4_1,
    "Q5_0": _unpack_q5_0,
    "Q5_1": _unpack_q5_1,
    "Q8_0": _unpack_q8_0,
    "Q2_K": _unpack_q2_k,
    "Q3_K": _unpack_q3_k,
    "Q4_K": _unpack_q4_k,
    "Q5_K": _unpack_q5_k,
    "Q6_K": _unpack_q6_k,
    "IQ4_NL": _unpack_iq4_nl,
    "IQ4_XS": _unpack_iq4_xs,
}
"""For each type, the function from blocks (n, bytes; uint8) to their weights (n, weights of a block; float32)."""


def _half(number: torch.Tensor) -> torch.Tensor:
    """Return the float16 numbers in two bytes (n, 2) as float32 (n, 1)."""
    return number.view(torch.float16).float()


def _as_signed(fields: torch.Tensor, offset: int) -> torch.Tensor:
    """Return unsigned bytes below 128, less an offset, as int8."""
    return fields.view(torch.int8) - offset


def _fields(packed: torch.Tensor, bits: int, width: int | None = None) -> torch.Tensor:
    """Return the fields of some bits in bytes (n, bytes): of each `width` bytes first all lowest fields, and so on."""
    groups = packed.reshape(len(packed), -1, 1, width or packed.shape[1])
    shifted = [groups, *(groups >> shift for shift in range(bits, 8, bits))]
    return (torch.cat(shifted, 2) & (1 << bits) - 1).flatten(1)


def _byte_by_byte(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the fields of some bits in bytes (n, bytes): all of the first byte, from its lowest, then of the next."""
    return _fields(packed, bits, width=1)


def _scales_and_minima(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scales and minima (n, 8, 1) of Q4_K and Q5_K: six bits each, after the two of the whole block."""
    d, dmin = _half(blocks[:, :2]), _half(blocks[:, 2:4])
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((low & 63, high & 15 | (low >> 2) & 48), 1)
    minima = torch.cat((middle & 63, high >> 4 | (middle >> 2) & 48), 1)
    return (d * scales)[..., None], (dmin * minima)[..., None]


def _iq4_values(q: torch.Tensor) -> torch.Tensor:
    """Return the value (int8) of each integer from 0 to 15, cut out of two numbers instead of looked up in a table."""
    places = (q & 7).long() << 3
    numbers = torch.where(q < 8, _IQ4_LOW, _IQ4_HIGH)
    return (numbers >> places & 255).to(torch.uint8).view(torch.int8)


def gguf_tensors(path: Path) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """Return the tensors of a GGUF file, to be read and unpacked to float32 on demand, and its metadata.

    Raises DarkroomError if it is not a complete GGUF file, or has types that cannot be read.
    """
    header = read_gguf_header(path)
    if header.unreadable:
        raise DarkroomError(
            f"{path.name} contains weights in {', '.join(header.unreadable)}, which is not supported.",
            advice="Choose a file in Q8_0, Q6_K, Q5_K or Q4_K.",
        )
    return {name: _lazy(path, tensor) for name, tensor in header.tensors.items()}, dict(header.metadata)


def read_packed(path: Path, tensor: GgufTensor) -> torch.Tensor:
    """Return a tensor's bytes as they are stored (bytes of a block times the number of blocks, uint8)."""
    buffer = bytearray(tensor.end - tensor.start)
    with open_regular(path) as file:
        file.seek(tensor.start)
        if file.readinto(buffer) != len(buffer):
            raise DarkroomError(f"{path.name} was truncated while it was read.")
    return torch.frombuffer(buffer, dtype=torch.uint8) if buffer else torch.empty(0, dtype=torch.uint8)


def unpack_blocks(packed: torch.Tensor, kind: BlockType, dtype: torch.dtype) -> torch.Tensor:
    """Return the weights (n,) in the bytes of a quantized type, in a dtype, rounded once from float32."""
    return UNPACK[kind.name](packed.view(-1, kind.num_bytes)).flatten().to(dtype)


def _lazy(path: Path, tensor: GgufTensor) -> LazyTensor:
    kind, shape = tensor.type, tensor.shape
    if not kind.is_packed:
        dtype = DTYPES[kind.name]
        return LazyTensor(shape, dtype, lambda: read_packed(path, tensor).view(dtype).reshape(shape))

    def make() -> torch.Tensor:
        if not math.prod(shape):
            return torch.empty(shape)
        packed = read_packed(path, tensor)
        return unpack_blocks(packed, kind, torch.float32).reshape(shape)

    return LazyTensor(shape, torch.float32, make)
