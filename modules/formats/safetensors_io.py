"""Writing safetensors files: streamed, deterministic, atomic, and with finite values only.

The format (github.com/huggingface/safetensors): eight bytes with the header's length, the header as JSON (for each
tensor dtype, shape and offsets; strings under "__metadata__"), then the tensors' bytes one after the other. The
library's own writer needs all tensors in memory at once and orders the metadata differently each time; this one writes
tensor by tensor, and equal content gives an equal file. Lazy tensors are created one at a time and freed once written.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from modules.formats.lazy_tensors import LazyTensor
from modules.system.atomic import atomic_file
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason

CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The names of dtypes in safetensors files."""
DTYPES = {code: dtype for dtype, code in CODES.items()}

PAYLOAD_SHA256 = "payload-sha256".center(64, "#")
"""A placeholder in metadata values for the payload's hash, which has the same length and is known last."""

TRAINED = "The training has diverged: use a lower learning rate or another precision."
"""The advice for trained weights that are not finite."""
CONVERTED = (
    "If the values are too large, use --dtype float32 or --dtype bfloat16; otherwise the file is damaged: "
    "download it again, or choose another one."
)
"""The advice for weights that are not finite and come from a file."""

_PART_ITEMS = 1 << 22

Writable = torch.Tensor | LazyTensor
OnWritten = Callable[[int, int], None]


def write_safetensors(
    path: Path,
    tensors: Mapping[str, Writable],
    metadata: Mapping[str, str],
    *,
    dtype: torch.dtype | None = None,
    on_written: OnWritten | None = None,
    advice: str = TRAINED,
) -> None:
    """Write tensors atomically in the order of their names, floating-point ones cast to `dtype` if one is given.

    Only one tensor at a time is created or copied from its device. `on_written(done, total)` counts bytes and may raise
    to cancel. Raises DarkroomError with `advice`, and leaves an existing file unchanged, if a tensor has a value that
    is not finite.
    """
    digest = hashlib.sha256()
    with atomic_file(path) as temporary:
        with temporary.open("wb") as file:
            header = header_of(tensors, metadata, dtype)
            file.write(header)
            done, total = 0, sum(_written_bytes(t, dtype) for t in tensors.values())
            for name in names_in_order(tensors, dtype):
                for part in _parts_of(name, tensors[name], dtype, advice):
                    digest.update(part)
                    done += file.write(part)
                if on_written is not None:
                    on_written(done, total)
            if PAYLOAD_SHA256.encode() in header:
                file.seek(0)
                file.write(header.replace(PAYLOAD_SHA256.encode(), digest.hexdigest().encode()))
        if done != total or temporary.stat().st_size != len(header) + total:
            raise DarkroomError(f"{path.name} could not be written completely; the previous file is unchanged.")


def payload_sha256(tensors: Mapping[str, Writable], *, dtype: torch.dtype | None = None) -> str:
    """Return the SHA-256 of the tensors' bytes as `write_safetensors` would write them (ModelSpec's hash_sha256)."""
    digest = hashlib.sha256()
    for name in names_in_order(tensors, dtype):
        for part in _parts_of(name, tensors[name], dtype, TRAINED):
            digest.update(part)
    return digest.hexdigest()


def read_safetensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return a file's tensors, memory-mapped, and its metadata. Raises DarkroomError for an invalid file."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DarkroomError(f"{path} is not a complete safetensors file: {plain_reason(error)}.") from error


def header_of(tensors: Mapping[str, Writable], metadata: Mapping[str, str], dtype: torch.dtype | None) -> bytes:
    """Return the bytes of a file before its tensors. With a `dtype`, floating-point tensors are stored in it."""
    header: dict[str, object] = {}
    if metadata:
        header["__metadata__"] = dict(sorted(metadata.items()))
    offset = 0
    for name in names_in_order(tensors, dtype):
        tensor, size = tensors[name], _written_bytes(tensors[name], dtype)
        header[name] = {
            "dtype": CODES[_written_dtype(tensor, dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors start at a multiple of eight
    return len(text).to_bytes(8, "little") + text


def names_in_order(tensors: Mapping[str, Writable], dtype: torch.dtype | None) -> Iterator[str]:
    """Yield the names as a file has them: wider dtypes first, so that every tensor is aligned to its item size."""
    yield from sorted(tensors, key=lambda n: (-_written_dtype(tensors[n], dtype).itemsize, n))


def _written_dtype(tensor: Writable, dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype is not None and tensor.dtype.is_floating_point else tensor.dtype


def _written_bytes(tensor: Writable, dtype: torch.dtype | None) -> int:
    return math.prod(tensor.shape) * _written_dtype(tensor, dtype).itemsize


def _parts_of(name: str, tensor: Writable, dtype: torch.dtype | None, advice: str) -> Iterator[memoryview]:
    """Yield a tensor's bytes, cast and checked in chunks, so that a large tensor needs no second copy."""
    made = tensor.make() if isinstance(tensor, LazyTensor) else tensor
    if made.shape != tensor.shape or made.dtype != tensor.dtype:
        raise DarkroomError(
            f"{name} is {made.dtype} {tuple(made.shape)} instead of its declared type; nothing was saved."
        )
    written = _written_dtype(tensor, dtype)
    flat = made.detach().reshape(-1)
    for start in range(0, flat.numel(), _PART_ITEMS):
        part = flat[start : start + _PART_ITEMS].to("cpu", written).contiguous()
        # isfinite does not support 8-bit floats; a NaN or infinite value stays one when it is widened.
        asked = part if written.itemsize > 1 or not written.is_floating_point else part.float()
        if written.is_floating_point and not bool(asked.isfinite().all()):
            raise DarkroomError(
                f"{name} contains NaN or infinite values, or values too large for {written}; nothing was saved.",
                advice=advice,
            )
        # A single element counts as contiguous with any stride, but cannot be viewed as bytes with one other than 1.
        yield part.as_strided((part.numel(),), (1,)).view(torch.uint8).numpy().data
