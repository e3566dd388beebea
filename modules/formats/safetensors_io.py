"""Writing safetensors files: streamed, deterministic, atomic, and never with a number that is none.

The format (github.com/huggingface/safetensors): eight bytes with the header's length, the header as JSON (for each
tensor dtype, shape and place; texts under "__metadata__"), then the tensors' bytes one after the other. The library's
own writer wants all tensors in memory at once and orders the metadata differently each time; this one writes tensor by
tensor, and equal content gives an equal file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError, safe_open

from modules.errors import DarkroomError
from modules.system.atomic import atomic_file

_DTYPE_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_safetensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], *, dtype: torch.dtype | None = None
) -> None:
    """Write tensors atomically, floating ones cast to `dtype` where one is given, in the order of their names.

    Only one tensor at a time is cast or copied from its device. Raises DarkroomError, and leaves what was there, where
    a tensor holds a value that is not a finite number.
    """
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        _write_header(file, tensors, metadata, dtype)
        for name in _order(tensors, dtype):
            file.write(_bytes_of(name, tensors[name], dtype))


def payload_sha256(tensors: Mapping[str, torch.Tensor], *, dtype: torch.dtype | None = None) -> str:
    """Return the SHA-256 of the tensors' bytes as `write_safetensors` would write them (ModelSpec's hash_sha256)."""
    digest = hashlib.sha256()
    for name in _order(tensors, dtype):
        digest.update(_bytes_of(name, tensors[name], dtype))
    return digest.hexdigest()


def read_safetensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return a file's tensors, memory-mapped, and its metadata. Raises DarkroomError where it is no such file."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DarkroomError(f"{path} is no complete safetensors file: {error}.") from error


def _write_header(
    file: BinaryIO, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], dtype: torch.dtype | None
) -> None:
    header: dict[str, object] = {}
    if metadata:
        header["__metadata__"] = dict(sorted(metadata.items()))
    offset = 0
    for name in _order(tensors, dtype):
        tensor, written = tensors[name], _written_dtype(tensors[name], dtype)
        size = tensor.numel() * written.itemsize
        header[name] = {
            "dtype": _DTYPE_CODES[written],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    file.write(len(text).to_bytes(8, "little") + text)


def _order(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None) -> Iterator[str]:
    """Yield the names, wider dtypes first, so that every tensor lies at a multiple of its item size."""
    yield from sorted(tensors, key=lambda n: (-_written_dtype(tensors[n], dtype).itemsize, n))


def _written_dtype(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype


def _bytes_of(name: str, tensor: torch.Tensor, dtype: torch.dtype | None) -> memoryview:
    plain = tensor.detach().to("cpu", _written_dtype(tensor, dtype)).contiguous()
    if plain.is_floating_point() and not bool(plain.isfinite().all()):
        raise DarkroomError(
            f"{name} holds values that are not numbers, or too large for {plain.dtype}; nothing was saved.",
            advice="The training broke down: use a lower learning rate or another precision.",
        )
    return plain.reshape(-1).view(torch.uint8).numpy().data
