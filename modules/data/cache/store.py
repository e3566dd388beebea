"""Cache entries: tensors by key, on disk or in memory.

On disk each is written as a safetensors file in a fan-out folder, with a checksum, atomically: several runs may share a
cache folder, and a run that is killed leaves no partial entry. Thousands of them are then joined to a shard.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from modules.data.cache import shards
from modules.data.cache.entry_files import SHARDS
from modules.system.atomic import remove_quietly
from modules.system.file_errors import name_destination

logger = logging.getLogger("darkroom.cache")

ENTRIES_PER_SHARD = 4096
_MAX_SHARD_BYTES = 256 * 2**20
_LEFTOVER_AFTER_SECONDS = 3600  # no entry takes that long to write


class BrokenEntryError(Exception):
    """A cache entry is not as it was written: truncated, altered, of another format, or the entry of another key."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry of a cache folder: its key, the path of its file or of its shard, and its size.

    The key is empty for the temporary file of a killed run, and for a damaged shard.
    """

    key: str
    path: Path
    num_bytes: int


class EntryStore(Protocol):
    """Entries by key."""

    @property
    def folder(self) -> Path | None:
        """The folder of the entries, in which other runs may build some, too; None for entries in memory."""
        ...

    def has(self, key: str) -> bool:
        """Return whether there is an entry."""
        ...

    def num_bytes(self, key: str) -> int:
        """Return the size of an entry; 0 for a missing one."""
        ...

    def sizes(self, keys_NK: shards.Keys) -> shards.Numbers:
        """Return the sizes of many entries by their keys of 20 bytes, (N, 20): much faster than one by one."""
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
    """Entries under one folder: `<folder>/<first two digits>/<key>.safetensors`, or in `<folder>/shards`.

    With a `dtype`, tensors of larger floating-point types are kept in it. Each `entries_per_shard` entries that this
    store has written are joined to a shard, or fewer if they are large; with 0 they stay files of their own. Threads
    may share it, and several processes may use a folder at once.
    """

    def __init__(self, folder: Path, dtype: torch.dtype | None = None, *, entries_per_shard: int = 0) -> None:
        self.folder = folder
        self._prefix = str(folder)
        self._dtype = dtype
        self._shards = shards.ShardIndex(folder / SHARDS)
        self._entries_per_shard = entries_per_shard
        self._lock = threading.Lock()
        self._to_join: set[str] = set()
        self._bytes_to_join = 0

    def path(self, key: str) -> Path:
        """Return the path of the file of an entry outside of shards, whether or not it exists."""
        return self.folder / key[:2] / f"{key}.safetensors"

    def _name(self, key: str) -> str:
        """Return `path` as text."""
        return f"{self._prefix}{os.sep}{key[:2]}{os.sep}{key}.safetensors"

    def has(self, key: str) -> bool:
        """Return whether there is an entry; its content is only checked when it is read."""
        return self.num_bytes(key) > 0

    def num_bytes(self, key: str) -> int:
        """Return the size of an entry; 0 for a missing one."""
        place = self._shards.find(key)
        if place is None and (num_bytes := self._file_bytes(key)):
            return num_bytes
        if place is None and self._shards.refresh():  # after that: a file is removed once its shard is there
            place = self._shards.find(key)
        return place[0].num_bytes(place[1]) if place is not None else 0

    def sizes(self, keys_NK: shards.Keys) -> shards.Numbers:
        """Return the sizes of many entries by their keys of 20 bytes, (N, 20): much faster than one by one."""
        self._shards.refresh()
        sizes = self._shards.sizes(keys_NK)
        for row in np.flatnonzero(sizes == 0).tolist():
            sizes[row] = self.num_bytes(bytes(keys_NK[row]).hex())
        return sizes

    def _file_bytes(self, key: str) -> int:
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
        content = save(kept, metadata={"checksum": _checksum(kept, key)})
        temporary = path.with_name(f".{key}.{uuid4().hex[:8]}")
        try:
            temporary.write_bytes(content)
            try:
                temporary.replace(path)
            except PermissionError:  # on Windows: another run has written the entry and is reading it
                if not path.is_file():
                    raise
        except OSError as error:
            remove_quietly(temporary)
            raise name_destination(error, path, temporary) from error.__cause__
        self._join_later(key, len(content))
        return kept

    def _join_later(self, key: str, num_bytes: int) -> None:
        """Join the entries that were written since the last shard, if there are enough of them."""
        if not self._entries_per_shard or not shards.is_shardable(key):
            return
        with self._lock:
            self._to_join.add(key)
            self._bytes_to_join += num_bytes
            if len(self._to_join) >= self._entries_per_shard or self._bytes_to_join >= _MAX_SHARD_BYTES:
                self._join(self._to_join)
                self._to_join, self._bytes_to_join = set(), 0

    def _join(self, keys: Collection[str]) -> None:
        """Write a shard of entries, then remove their files. What prevents that is logged, and the files stay."""
        try:
            shards.write_shard(self._shards.folder, keys, self._content_of_file)
        except OSError as error:
            logger.warning("The entries of %s stay in files of their own: %s", self.folder, error)
            return
        self._shards.refresh()
        for key in keys:
            if self._shards.find(key) is not None:
                remove_quietly(self.path(key))

    def _content_of_file(self, key: str) -> bytes | None:
        """Return the bytes of an entry's file, or None if another process has joined it to a shard."""
        try:
            return self.path(key).read_bytes()
        except FileNotFoundError:
            return None

    def read(self, key: str) -> dict[str, torch.Tensor]:
        """Return an entry's tensors. Raises BrokenEntryError where it is missing or damaged."""
        problems = list[Exception]()
        for content_of in (self._content_in_shard, self._content_of_file, self._content_in_new_shard):
            try:
                content = content_of(key)
                if content is not None:
                    return _tensors_of(content, key)
            except (OSError, SafetensorError, shards.BrokenShardError, BrokenEntryError) as error:
                problems.append(error)
        raise BrokenEntryError(f"{self.path(key)}: {problems[0] if problems else 'there is no such entry'}")

    def _content_in_shard(self, key: str) -> bytes | None:
        place = self._shards.find(key)
        if place is None:
            return None
        try:
            return place[0].read(place[1])
        except shards.BrokenShardError:
            self._shards.drop(place[0])  # another process may have replaced it
            raise

    def _content_in_new_shard(self, key: str) -> bytes | None:
        return self._content_in_shard(key) if self._shards.refresh() else None

    def remove(self, key: str) -> None:
        """Remove an entry, if it is there. What is in a shard stays there, but is no longer found by this store.

        It is for damaged entries: their new files are read where the copies in shards are damaged.
        """
        self._shards.forget(key)
        self.path(key).unlink(missing_ok=True)

    def entries(self) -> Iterator[StoredEntry]:
        """Yield every entry of the folder, and what killed runs left in it, by name; then those in shards."""
        for path in sorted(self.folder.glob("??/*")):
            try:
                status = path.stat()
            except OSError:  # removed or renamed by another run
                continue
            if path.suffix == ".safetensors":
                yield StoredEntry(path.stem, path, status.st_size)
            elif path.name.startswith(".") and time.time() - status.st_mtime > _LEFTOVER_AFTER_SECONDS:
                yield StoredEntry("", path, status.st_size)
        for path in sorted(self._shards.folder.glob("*.safetensors")):
            try:
                yield from (StoredEntry(key, path, num_bytes) for key, num_bytes in shards.entries_of_shard(path))
            except shards.BrokenShardError:
                yield StoredEntry("", path, path.stat().st_size)


def remove_entries(entries: Iterable[StoredEntry]) -> None:
    """Remove entries that `CacheStore.entries` has listed. The others in their shards are written to new shards."""
    in_shards: dict[Path, set[str]] = {}
    for entry in entries:
        if entry.key and entry.path.parent.name == SHARDS:
            in_shards.setdefault(entry.path, set()).add(entry.key)
        else:
            entry.path.unlink(missing_ok=True)
    for path, keys in in_shards.items():
        shards.remove_from_shard(path, keys)


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


def _tensors_of(content: bytes, key: str) -> dict[str, torch.Tensor]:
    """Return the tensors of an entry from its bytes. Raises SafetensorError, BrokenEntryError for damaged ones."""
    tensors = load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    stored = header.get("__metadata__", {}).get("checksum")
    if stored != _checksum(tensors, key) and stored != _checksum(tensors):
        raise BrokenEntryError("its content does not match its checksum")
    return tensors


def _checksum(tensors: Mapping[str, torch.Tensor], key: str = "") -> str:
    """Return the checksum of an entry: with its key, so that one under the key of another is damaged.

    Entries of older versions have one without it.
    """
    digest = hashlib.blake2b(key.encode(), digest_size=16)
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
