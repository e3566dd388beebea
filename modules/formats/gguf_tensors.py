"""The tensors of a GGUF file: unpacked on demand, or packed as they are stored."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from modules.formats.gguf_blocks import UNPACK
from modules.formats.gguf_header import BlockType, GgufTensor, read_gguf_header
from modules.formats.lazy_tensors import LazyTensor
from modules.formats.safetensors_io import DTYPES
from modules.system.errors import DarkroomError
from modules.system.regular_files import open_regular


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
