"""Cache entries: tensors by key, on disk or in memory.

On disk they are safetensors files in fan-out folders, each with a checksum, written atomically: several runs may share
a cache folder, and a run that is killed leaves no partial entry.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from modules.system.atomic import remove_quietly
from modules.system.file_errors import name_destination

_LEFTOVER_AFTER_SECONDS = 3600  # no entry takes that long to write


class BrokenEntryError(Exception):
    """A cache entry is not as it was written: truncated, altered, or of another format."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A file of a cache folder: its key (empty for the temporary file of a killed run), path and size."""

    key: str
    path: Path
    num_bytes: int


class EntryStore(Protocol):
    """Entries by key."""

    def has(self, key: str) -> bool:
        """Return whether there is an entry."""
        ...

    def num_bytes(self, key: str) -> int:
        """Return the size of an entry; 0 for a missing one."""
        ...

    def write(self, key: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Store an entry and return its tensors as they are kept: on the CPU, in the store's dtype."""
        ...

    def read(self, key: str) -> dict[str, torch.Tensor]:
        """Return an entry's tensors. Raises BrokenEntryError where it is missing or damaged."""
        ...

    def remove(self, key: str) -> None:
        """Remove an entry, if it is there."""
        ...


class CacheStore:
    """Entries under one folder: `<folder>/<first two digits>/<key>.safetensors`.

    With a `dtype`, tensors of larger floating-point types are kept in it.
    """

    def __init__(self, folder: Path, dtype: torch.dtype | None = None) -> None:
        self.folder = folder
        self._prefix = str(folder)
        self._dtype = dtype

    def path(self, key: str) -> Path:
        """Return the path of the entry with that key, whether or not it exists."""
        return self.folder / key[:2] / f"{key}.safetensors"

    def _name(self, key: str) -> str:
        """Return `path` as text."""
        return f"{self._prefix}{os.sep}{key[:2]}{os.sep}{key}.safetensors"

    def has(self, key: str) -> bool:
        """Return whether there is an entry; its content is only checked when it is read."""
        return self.num_bytes(key) > 0

    def num_bytes(self, key: str) -> int:
        """Return the size of an entry's file; 0 for a missing one."""
        try:
            return os.stat(self._name(key)).st_size  # noqa: PTH116 - a path takes longer to make than to look up
        except OSError:
            return 0

    def write(self, key: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Write an entry under a temporary name and rename it, so that a partial entry is never read.

        Returns its tensors as they are kept.
        """
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = convert_for_cache(tensors, self._dtype)
        temporary = path.with_name(f".{key}.{uuid4().hex[:8]}")
        try:
            temporary.write_bytes(save(kept, metadata={"checksum": _checksum(kept)}))
            try:
                temporary.replace(path)
            except PermissionError:  # on Windows: another run has written the entry and is reading it
                if not path.is_file():
                    raise
        except OSError as error:
            raise name_destination(error, path, temporary) from error.__cause__
        finally:
            remove_quietly(temporary)
        return kept

    def read(self, key: str) -> dict[str, torch.Tensor]:
        """Return an entry's tensors, memory-mapped. Raises BrokenEntryError where it is missing or damaged."""
        try:
            with safe_open(self.path(key), framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
                checksum = (file.metadata() or {}).get("checksum")
        except (OSError, SafetensorError) as error:
            raise BrokenEntryError(f"{self.path(key)}: {error}") from error
        if checksum != _checksum(tensors):
            raise BrokenEntryError(f"{self.path(key)}: its content does not match its checksum")
        return tensors

    def remove(self, key: str) -> None:
        """Remove an entry, if it is there."""
        self.path(key).unlink(missing_ok=True)

    def entries(self) -> Iterator[StoredEntry]:
        """Yield every entry of the folder, and the temporary files that killed runs left in it, by name."""
        for path in sorted(self.folder.glob("??/*")):
            try:
                status = path.stat()
            except OSError:  # removed or renamed by another run
                continue
            if path.suffix == ".safetensors":
                yield StoredEntry(path.stem, path, status.st_size)
            elif path.name.startswith(".") and time.time() - status.st_mtime > _LEFTOVER_AFTER_SECONDS:
                yield StoredEntry("", path, status.st_size)


class RememberingStore:
    """Entries of another store. The ones that are read first are kept in memory, up to `most_bytes` of them.

    A small dataset is read from disk once, not in each epoch. Threads may share it.
    """

    def __init__(self, store: EntryStore, *, most_bytes: int) -> None:
        self._store = store
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._entries: dict[str, dict[str, torch.Tensor]] = {}

    def has(self, key: str) -> bool:
        """Return whether there is an entry."""
        return self._store.has(key)

    def num_bytes(self, key: str) -> int:
        """Return the size of an entry; 0 for a missing one."""
        return self._store.num_bytes(key)

    def write(self, key: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Store an entry and return its tensors as they are kept."""
        self._forget(key)
        return self._store.write(key, tensors)

    def read(self, key: str) -> dict[str, torch.Tensor]:
        """Return an entry's tensors. Raises BrokenEntryError where it is missing or damaged."""
        known = self._entries.get(key)
        if known is not None:
            return dict(known)
        tensors = self._store.read(key)
        if self._num_bytes + _num_bytes(tensors) <= self._most_bytes:
            self._num_bytes += _num_bytes(tensors)
            self._entries[key] = {name: t.clone() for name, t in tensors.items()}  # not the mapped file
        return tensors

    def remove(self, key: str) -> None:
        """Remove an entry, if it is there."""
        self._forget(key)
        self._store.remove(key)

    def _forget(self, key: str) -> None:
        self._num_bytes -= _num_bytes(self._entries.pop(key, {}))


class MemoryStore:
    """Entries in memory, for one run; nothing is written. `dtype` is as in `CacheStore`. Threads may share it."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self._dtype = dtype
        self._entries: dict[str, dict[str, torch.Tensor]] = {}

    def has(self, key: str) -> bool:
        """Return whether there is an entry."""
        return key in self._entries

    def num_bytes(self, key: str) -> int:
        """Return the size of an entry's tensors; 0 for a missing one."""
        return _num_bytes(self._entries.get(key, {}))

    def write(self, key: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Keep copies of an entry's tensors and return them."""
        self._entries[key] = {name: t.clone() for name, t in convert_for_cache(tensors, self._dtype).items()}
        return dict(self._entries[key])

    def read(self, key: str) -> dict[str, torch.Tensor]:
        """Return an entry's tensors. Raises BrokenEntryError where it is missing."""
        try:
            return dict(self._entries[key])
        except KeyError as error:
            raise BrokenEntryError(f"{key} is not in memory") from error

    def remove(self, key: str) -> None:
        """Remove an entry, if it is there."""
        self._entries.pop(key, None)


def convert_for_cache(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    """Return tensors as a store keeps them: on the CPU, contiguous, larger floating-point types in `dtype`.

    A tensor with values beyond the range of `dtype` keeps its own.
    """
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    if dtype is None:
        return plain
    return {name: _smaller(t, dtype) for name, t in plain.items()}


def _smaller(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.dtype.itemsize <= dtype.itemsize:
        return tensor
    converted = tensor.to(dtype)
    return converted if bool(converted.isfinite().all()) else tensor


def _checksum(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name}:{tensors[name].dtype}:{tuple(tensors[name].shape)}".encode())
        digest.update(_raw_bytes(tensors[name]))
    return digest.hexdigest()


def weights_fingerprint(module: torch.nn.Module) -> str:
    """Return a hash of all of a module's weights, their names, shapes and dtypes; the module must be on the CPU."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(_raw_bytes(tensor.detach().cpu().contiguous()))
    return digest.hexdigest()


def _raw_bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _num_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(t.nbytes for t in tensors.values())
