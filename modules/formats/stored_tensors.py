"""The tensors of files on disk as lazy tensors: read one by one, so that memory holds one at a time.

safetensors files are read with plain reads, not memory-mapped, so that a converted tensor is freed once it is written.
Pickled checkpoints are memory-mapped by torch with `weights_only`, which runs no code. The weights of GGUF files are
unpacked (`gguf_tensors`).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO

import torch

from modules.formats.float8_scales import ADVICE, scales_in
from modules.formats.gguf_tensors import gguf_tensors
from modules.formats.headers import TensorEntry, UnreadableFileError, is_index, read_header, shards_of
from modules.formats.lazy_tensors import LazyTensor, lazy
from modules.formats.pickle_header import (
    PickleHeader,
    is_zip,
    pickle_header_of,
    read_pickle_header,
    unsafe_names_of,
    unsafe_sentence,
)
from modules.formats.pickle_values import LEFTOVERS, PARAMETER_DICT
from modules.formats.safetensors_io import CODES, DTYPES
from modules.system.errors import DarkroomError
from modules.system.hardware import free_memory
from modules.system.regular_files import open_regular

_UNSAFE_ADVICE = "Get it as .safetensors, or convert it with the program that made it."
_MAX_DEPTH = 4
_ALWAYS_READ = 100_000_000  # bytes; asking for the free memory takes longer than reading most tensors


@dataclass(frozen=True, eq=False)
class ScaledTensor(LazyTensor):
    """A weight in float8 as it is stored, and its scale: one number, or one for each row. `make()` multiplies them."""

    stored: LazyTensor
    scale: LazyTensor

    def row_scales(self) -> torch.Tensor:
        """Return the scale of each row (out, 1), in float32."""
        return self.scale.make().float().reshape(-1, 1).expand(self.shape[0], 1).contiguous()


def read_stored(path: Path) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """Return the tensors of a model file, of any format regardless of its suffix, and its metadata.

    An index of several files stands for all of them. Weights in scaled float8 are `ScaledTensor`s, without tensors for
    their scales. Raises DarkroomError if it is not a complete file of a known format.
    """
    try:
        if is_index(path):
            files = [read_lazy_safetensors(file)[0] for file in shards_of(path)]
            return _with_scaled_weights(
                {name: t for tensors in files for name, t in tensors.items()}, {}, path.name
            ), {}
        tensors, metadata = read_lazy_safetensors(path)
        return _with_scaled_weights(tensors, metadata, path.name), metadata
    except UnreadableFileError as error:
        if error.defect == "gguf":
            return gguf_tensors(path)
        if error.defect != "pickled":
            raise
        return read_pickled_tensors(path), {}


def read_lazy_safetensors(path: Path) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """Return the tensors of a safetensors file, to be read on demand, and its metadata.

    Raises DarkroomError if it is not a complete safetensors file.
    """
    header = read_header(path)
    unknown = {t.dtype for t in header.tensors.values()} - DTYPES.keys()
    if unknown:
        raise DarkroomError(f"{path.name} contains dtypes that are not supported: {', '.join(unknown)}.")
    return {name: _lazy_entry(path, entry) for name, entry in header.tensors.items()}, dict(header.metadata)


def _with_scaled_weights(
    tensors: dict[str, LazyTensor], metadata: Mapping[str, str], file: str
) -> dict[str, LazyTensor]:
    """Return a file's tensors with scaled float8 weights. Raises DarkroomError where their scales are missing."""
    shapes, dtypes = {n: t.shape for n, t in tensors.items()}, {n: CODES.get(t.dtype, "") for n, t in tensors.items()}
    scales = scales_in(shapes, dtypes, metadata)
    if scales.problem:
        raise DarkroomError(f"{file} {scales.problem}", advice=ADVICE)
    weights = {name: tensors[name] for name in scales.weights(tensors)}
    return weights | {name: _scaled_tensor(weights[name], tensors[scale]) for name, scale in scales.names.items()}


def _scaled_tensor(stored: LazyTensor, scale: LazyTensor) -> ScaledTensor:
    def make() -> torch.Tensor:
        factors = scale.make().float().flatten()
        return stored.make().float() * factors.view(-1, *(1 for _ in stored.shape[1:]))

    return ScaledTensor(stored.shape, torch.float32, make, stored, scale)


def read_pickled_tensors(path: Path) -> dict[str, LazyTensor]:
    """Return the tensors of a .ckpt or .pt file by dotted name, without a "state_dict" prefix.

    Raises DarkroomError if it is damaged, in the format before PyTorch 1.6, or contains more than weights.
    """
    # torch sets no limits: a file of a few bytes can take hours and all memory. The header's reader does.
    _refuse_code(path.name, read_pickle_header(path))
    with open_regular(path) as file:
        if not is_zip(file):
            raise DarkroomError(
                f"{path.name} is in the format of PyTorch before 1.6, which is not supported.",
                advice="Convert it to .safetensors with another program.",
            )
    data = _load(path, path.name, mmap=True)
    return {name: lazy(tensor) for name, tensor in _flatten(data, "", 0)}


def read_pickled_tensor(content: bytes, *, name: str) -> torch.Tensor:
    """Return the tensor that torch.save wrote as `content`; `name` is the file's, for errors.

    Raises DarkroomError if it is anything else.
    """
    _refuse_code(name, pickle_header_of(io.BytesIO(content), Path(name)))
    tensor = _load(io.BytesIO(content), name, mmap=False)
    if not isinstance(tensor, torch.Tensor):
        raise DarkroomError(f"{name} contains something other than a tensor.", advice=_UNSAFE_ADVICE)
    return tensor.detach()


def _refuse_code(name: str, header: PickleHeader) -> None:
    if unsafe := unsafe_names_of(header.names):
        raise DarkroomError(f"{unsafe_sentence(name, unsafe)} It contains more than weights.", advice=_UNSAFE_ADVICE)


def _load(source: Path | BinaryIO, name: str, *, mmap: bool) -> Any:
    """Load a file by torch.load without running code. Raises DarkroomError if that is impossible."""
    try:
        with _harmless_leftovers():
            return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, TypeError, AttributeError, IndexError) as error:
        raise DarkroomError(f"{name} cannot be read: {str(error).partition(chr(10))[0]}") from error
    except UnpicklingError as error:
        raise DarkroomError(
            f"{name} contains more than weights, and loading it could run code from the file.", advice=_UNSAFE_ADVICE
        ) from error


def require_memory(num_bytes: int, path: Path) -> None:
    """Raise DarkroomError if tensors of a file need more memory than is free.

    A file of a few bytes on the disk can have tensors of any size: reading them would end this program or others.
    """
    if num_bytes > _ALWAYS_READ and num_bytes > (free := free_memory()):
        raise DarkroomError(
            f"{path.name} needs {num_bytes / 1e9:,.1f} GB of memory, {free / 1e9:,.1f} GB are free.",
            advice="Close other programs, or choose a smaller file: a LoRA of SDXL has at most a few GB.",
        )


def _lazy_entry(path: Path, entry: TensorEntry) -> LazyTensor:
    dtype = DTYPES[entry.dtype]

    def read() -> torch.Tensor:
        if entry.end == entry.start:
            return torch.empty(entry.shape, dtype=dtype)
        require_memory(entry.end - entry.start, path)
        buffer = bytearray(entry.end - entry.start)
        with open_regular(path) as file:
            file.seek(entry.start)
            if file.readinto(buffer) != len(buffer):
                raise DarkroomError(f"{path.name} was truncated while it was read.")
        return torch.frombuffer(buffer, dtype=dtype).reshape(entry.shape)

    return LazyTensor(entry.shape, dtype, read)


def _flatten(value: Any, name: str, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value.detach()
    elif isinstance(value, Mapping) and depth < _MAX_DEPTH:
        for key, inner in value.items():
            if isinstance(key, str):
                prefix = name if key == "state_dict" else f"{name}.{key}" if name else key
                yield from _flatten(inner, prefix, depth + 1)


class _Nothing:
    """Replaces an object that a trainer left in the file: accepts any arguments and stores nothing."""

    def __init__(self, *arguments: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


class _Parameters(dict[str, torch.Tensor]):
    """Replaces a dictionary of parameters, which is a module, by the parameters in its state."""

    def __setstate__(self, state: object) -> None:
        parameters = state.get("_parameters") if isinstance(state, dict) else None
        self.update(parameters if isinstance(parameters, dict) else {})


@contextlib.contextmanager
def _harmless_leftovers() -> Iterator[None]:
    replaced: list[tuple[type, str]] = [(_Nothing, name) for name in LEFTOVERS]
    with torch.serialization.safe_globals([*replaced, (_Parameters, PARAMETER_DICT)]):
        yield
