"""Reads tensors in the format of `torch.distributed.checkpoint`, in which older versions wrote sharded backups.

A folder holds a pickle, `.metadata`, with the place of each part of each tensor, and files with these parts, each as
torch.save writes it. torch unpickles `.metadata` without any restriction; here its instructions are only interpreted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from modules.formats.lazy_tensors import LazyTensor
from modules.formats.pickle_header import unsafe_sentence
from modules.formats.pickle_machine import PickleLimitError, PickleMachine
from modules.formats.pickle_values import BuiltObject, NamedGlobal
from modules.formats.stored_tensors import read_pickled_tensor
from modules.system.errors import DarkroomError
from modules.system.regular_files import open_regular, read_regular

METADATA = ".metadata"
_MODULE = "torch.distributed.checkpoint.metadata."
_STORAGE = "torch.distributed.checkpoint.filesystem._StorageInfo"
_NAMES = frozenset(
    {
        *(f"{_MODULE}{name}" for name in ("Metadata", "TensorStorageMetadata", "TensorProperties", "MetadataIndex")),
        *(f"{_MODULE}{name}" for name in ("ChunkStorageMetadata", "BytesStorageMetadata", "StorageMeta")),
        *(f"{_MODULE}_MEM_FORMAT_ENCODING", _STORAGE, "torch.Size", "torch.serialization._get_layout"),
        "builtins.getattr",  # how Python 3.11.0 to 3.11.3 writes a member of an enum; it is not called here, either
        *("pathlib.PosixPath", "pathlib.WindowsPath", "pathlib._local.PosixPath", "pathlib._local.WindowsPath"),
        *(f"torch.{name}" for name in ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")),
        *(f"torch.{name}" for name in ("int64", "int32", "int16", "int8", "uint8", "bool")),
    }
)
_MAX_BYTES = 200_000_000  # a fine-tune of SDXL with EMA on eight processes has 20 MB
_MAX_INSTRUCTIONS = 20_000_000
_DAMAGE = (OSError, ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a tensor: its first row, the number of rows of the whole tensor, and its values; scalars have 0, 1."""

    start: int
    num_rows: int
    values: LazyTensor


def read_distributed(folder: Path) -> dict[str, list[Part]]:
    """Return the parts of each tensor in a folder. Raises DarkroomError if the folder is damaged or contains code."""
    try:
        metadata = _metadata(folder)
        stored: Mapping[str, Any] = metadata.state["state_dict_metadata"]
        parts: dict[str, list[Part]] = {}
        for index, place in metadata.state["storage_data"].items():
            name = index.state["fqn"]
            facts = stored[name]
            if facts.name == f"{_MODULE}TensorStorageMetadata":
                parts.setdefault(name, []).append(_part(folder, facts.state, index.state["offset"], place))
    except PickleLimitError as error:
        raise _damage_error(folder, f"it contains {error}") from error
    except _DAMAGE as error:
        raise _damage_error(folder, "its .metadata is damaged") from error
    return parts


def _metadata(folder: Path) -> BuiltObject:
    machine = PickleMachine(
        read_regular(folder / METADATA, _MAX_BYTES), max_instructions=_MAX_INSTRUCTIONS, keeps_objects=True
    )
    try:
        root = machine.run()
    finally:
        if unsafe := tuple(sorted(machine.names - _NAMES)):
            sentence = unsafe_sentence(str(folder / METADATA), unsafe)
            raise DarkroomError(sentence, advice="Delete the run's folder, or get it from its author again.")
    if not isinstance(root, BuiltObject) or root.name != f"{_MODULE}Metadata":
        raise ValueError("no metadata")
    return root


def _part(folder: Path, facts: Mapping[str, Any], offset: object, place: BuiltObject) -> Part:
    shape, offset = _lengths(facts["size"]), _lengths(offset)
    chunks = {_lengths(chunk.state["offsets"]): _lengths(chunk.state["sizes"]) for chunk in facts["chunks"]}
    if any(offset[1:]) or chunks[offset][1:] != shape[1:]:
        raise ValueError("not sharded in rows")
    kind, where = facts["properties"].state[0], place.state
    file = folder / where["relative_path"]
    if file.parent != folder or file.name in (".", ".."):
        raise DarkroomError(
            f"{folder / METADATA} names a file outside its folder: {where['relative_path']!r}.",
            advice="Delete the run's folder, or get it from its author again.",
        )
    dtype = getattr(torch, kind.name.removeprefix("torch.")) if isinstance(kind, NamedGlobal) else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError("no dtype")
    values = _lazy_part(file, where["offset"], where["length"], chunks[offset], dtype)
    return Part(offset[0] if offset else 0, shape[0] if shape else 1, values)


def _lazy_part(file: Path, start: int, length: int, shape: tuple[int, ...], dtype: torch.dtype) -> LazyTensor:
    def read() -> torch.Tensor:
        with open_regular(file) as opened:
            opened.seek(start)
            tensor = read_pickled_tensor(opened.read(length), name=file.name)
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise _damage_error(file.parent, f"a tensor in {file.name} is not like its entry in .metadata")
        return tensor

    _lengths((start, length))
    return LazyTensor(shape, dtype, read)


def _lengths(value: object) -> tuple[int, ...]:
    """Return a tuple of whole numbers. Raises ValueError for anything else: even the hash of one can take for ever."""
    if not isinstance(value, tuple) or any(type(n) is not int or n < 0 for n in value):
        raise ValueError("not lengths")
    return value


def _damage_error(folder: Path, reason: str) -> DarkroomError:
    return DarkroomError(f"{folder} cannot be read: {reason}.", advice="Resume from an older backup of the run.")
