"""Shards of a cache: files with thousands of entries each, found by their keys without opening a file.

A shard is a safetensors file of three tensors: `entries`, the bytes of the entries one after the other, each as a file
of its own has them; `starts`, their places in the file; and `keys`, sorted. It is written once, atomically.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from modules.system.atomic import atomic_file
from modules.system.file_errors import plain_reason

logger = logging.getLogger("darkroom.cache")

KEY_BYTES = 20
Keys = NDArray[np.uint8]
"""Keys of entries as numbers, (N, 20)."""
Numbers = NDArray[np.int64]

_DATA_START = 1024  # bytes: the length of the header, the header and spaces after it
_FORMAT = "darkroom cache shard 1"
_CHANGES_UNSEEN_NS = 2 * 10**9  # a folder may change again within the resolution of its date
_MAX_UNMERGED = 16  # shards that are searched one by one


class BrokenShardError(Exception):
    """A shard is not as it was written, or no longer there."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard: its file, and where its entries start in it, with the end of the last one."""

    path: Path
    starts_M: Numbers

    def num_bytes(self, row: int) -> int:
        """Return the size of an entry."""
        return int(self.starts_M[row + 1] - self.starts_M[row])

    def read(self, row: int) -> bytes:
        """Return the bytes of an entry. The file is opened each time: open files of large caches would be thousands.

        Raises BrokenShardError.
        """
        start, end = map(int, self.starts_M[row : row + 2])
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(start)
                content = file.read(end - start)
        except OSError as error:
            raise BrokenShardError(f"{self.path}: {plain_reason(error)}") from error
        if len(content) != end - start:
            raise BrokenShardError(f"{self.path} is truncated")
        return content


def is_shardable(key: str) -> bool:
    """Return whether a key has 20 bytes, as the keys of shards have."""
    try:
        return len(bytes.fromhex(key)) == KEY_BYTES and len(key) == 2 * KEY_BYTES
    except ValueError:
        return False


def write_shard(folder: Path, keys: Collection[str], content_of: Callable[[str], bytes | None]) -> Path | None:
    """Write a shard of entries and return its path; entries without content are left out, and so is an empty shard.

    It is on the disk when this returns. Raises OSError.
    """
    stored, starts = list[str](), array("q", [_DATA_START])
    place = folder / f"{hashlib.blake2b(''.join(sorted(keys)).encode(), digest_size=16).hexdigest()}.safetensors"
    try:
        with atomic_file(place) as temporary, temporary.open("wb") as file:
            file.write(bytes(_DATA_START))
            for key in sorted(keys):
                if content := content_of(key):
                    file.write(content)
                    stored.append(key)
                    starts.append(starts[-1] + len(content))
            if not stored:
                raise _NothingStoredError
            padding = bytes(-starts[-1] % 8)  # the numbers are aligned
            keys_NK = np.frombuffer(bytes.fromhex("".join(stored)), np.uint8)
            columns = starts.tobytes() + keys_NK.tobytes()
            file.write(padding + columns)
            file.seek(0)
            file.write(_header(file_bytes=starts[-1] + len(padding), num_entries=len(stored), columns=columns))
    except _NothingStoredError:
        return None
    return place


class _NothingStoredError(Exception):
    pass


def _header(*, file_bytes: int, num_entries: int, columns: bytes) -> bytes:
    """Return the header of a shard whose entries end at `file_bytes`, padded with spaces."""
    starts_at = file_bytes - _DATA_START
    keys_at = starts_at + 8 * (num_entries + 1)
    tensors = {
        "__metadata__": {"format": _FORMAT, "checksum": _checksum(columns)},
        "entries": {"dtype": "U8", "shape": [starts_at], "data_offsets": [0, starts_at]},
        "starts": {"dtype": "I64", "shape": [num_entries + 1], "data_offsets": [starts_at, keys_at]},
        "keys": {
            "dtype": "U8",
            "shape": [num_entries, KEY_BYTES],
            "data_offsets": [keys_at, keys_at + num_entries * KEY_BYTES],
        },
    }
    return (_DATA_START - 8).to_bytes(8, "little") + json.dumps(tensors).encode().ljust(_DATA_START - 8)


def read_shard(path: Path) -> tuple[Shard, Keys]:
    """Return a shard and its sorted keys, (N, 20). No entry is read.

    Raises BrokenShardError for a damaged file or one of another format.
    """
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            starts_M, keys_NK = (file.get_tensor(name) for name in ("starts", "keys"))
    except (OSError, SafetensorError) as error:
        raise BrokenShardError(f"{path}: {plain_reason(error)}") from error
    is_whole = metadata.get("checksum") == _checksum(starts_M.tobytes() + keys_NK.tobytes())
    if metadata.get("format") != _FORMAT or not is_whole:
        raise BrokenShardError(f"{path}: its keys do not match their checksum")
    return Shard(path, starts_M), keys_NK


def entries_of_shard(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the key of each entry of a shard and its size in bytes. Raises BrokenShardError."""
    shard, keys_NK = read_shard(path)
    yield from zip((bytes(key).hex() for key in keys_NK), np.diff(shard.starts_M).tolist(), strict=True)


def _checksum(columns: bytes) -> str:
    return hashlib.blake2b(columns, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class _Segment:
    """The entries of some shards by sorted key: the number of the shard, the row in it, and the size in bytes."""

    keys_N: NDArray[np.bytes_]
    shards_N: NDArray[np.int32]
    rows_N: NDArray[np.int32]
    sizes_N: NDArray[np.int64]

    @classmethod
    def of(cls, number: int, shard: Shard, keys_NK: Keys) -> _Segment:
        """Return the entries of one shard, which has that number."""
        count = len(keys_NK)
        rows = np.arange(count, dtype=np.int32)
        return cls(_comparable(keys_NK), np.full(count, number, np.int32), rows, np.diff(shard.starts_M))

    @classmethod
    def merge(cls, segments: Sequence[_Segment]) -> _Segment:
        """Return the entries of several segments; of equal keys the first one is found."""
        columns = [np.concatenate([getattr(s, name) for s in segments]) for name in cls.__slots__]
        order = np.argsort(columns[0], kind="stable")
        return cls(*(column[order] for column in columns))

    def find(self, keys_Q: NDArray[np.bytes_]) -> tuple[NDArray[np.bool_], Numbers]:
        """Return which of some keys are here, and their places (only meaningful for those)."""
        places = np.minimum(np.searchsorted(self.keys_N, keys_Q), len(self.keys_N) - 1)
        return self.keys_N[places] == keys_Q, places


def _comparable(keys_NK: Keys) -> NDArray[np.bytes_]:
    """Return keys as strings of bytes, (N,), which are compared as a whole."""
    compared: NDArray[np.bytes_] = np.ascontiguousarray(keys_NK).view(f"S{KEY_BYTES}").reshape(-1)
    return compared


class ShardIndex:
    """The entries in the shards of a folder, by key. New shards, also of other processes, are found by `refresh`.

    Threads may share it. A damaged shard counts as if it did not exist, and is logged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._date_ns = -1
        self._shards: list[Shard] = []
        self._known: set[str] = set()
        self._segments: tuple[_Segment, ...] = ()
        self._forgotten: set[str] = set()

    def find(self, key: str) -> tuple[Shard, int] | None:
        """Return the shard and the row of an entry, or None."""
        if not self._segments or key in self._forgotten or not is_shardable(key):
            return None
        wanted = np.frombuffer(bytes.fromhex(key), f"S{KEY_BYTES}")
        for segment in self._segments:
            is_here, places = segment.find(wanted)
            if is_here[0]:
                return self._shards[segment.shards_N[places[0]]], int(segment.rows_N[places[0]])
        return None

    def sizes(self, keys_NK: Keys) -> Numbers:
        """Return the sizes in bytes of the entries of many keys; 0 for those that are not here."""
        sizes = np.zeros(len(keys_NK), np.int64)
        wanted = _comparable(keys_NK)
        for segment in reversed(self._segments):
            is_here, places = segment.find(wanted)
            sizes[is_here] = segment.sizes_N[places[is_here]]
        for key in self._forgotten:
            sizes[wanted == bytes.fromhex(key)] = 0
        return sizes

    def refresh(self) -> bool:
        """Look for new shards, if the folder has changed; return whether there are any."""
        try:
            date_ns = self.folder.stat().st_mtime_ns
        except OSError:  # there are no shards
            return False
        with self._lock:
            if date_ns == self._date_ns and time.time_ns() - date_ns > _CHANGES_UNSEEN_NS:
                return False
            self._date_ns = date_ns
            new = [p for p in sorted(self.folder.glob("*.safetensors")) if p.name not in self._known]
            added = [segment for path in new if (segment := self._segment_of(path)) is not None]
            segments = (*self._segments, *added)
            self._segments = segments if len(segments) <= _MAX_UNMERGED else (_Segment.merge(segments),)
            return bool(added)

    def forget(self, key: str) -> None:
        """Count an entry as missing from now on: its content is damaged."""
        self._forgotten.add(key)

    def drop(self, shard: Shard) -> None:
        """Count all entries of a shard as missing: it is no longer there, or it is being removed."""
        with self._lock:
            number = next((n for n, s in enumerate(self._shards) if s is shard), None)
            if number is None:
                return
            self._known.discard(shard.path.name)
            self._date_ns = -1
            self._segments = tuple(
                _Segment(*(getattr(s, name)[s.shards_N != number] for name in _Segment.__slots__))
                for s in self._segments
                if bool((s.shards_N != number).any())
            )

    def _segment_of(self, path: Path) -> _Segment | None:
        """Add a shard and return its entries; None if it cannot be used."""
        try:
            shard, keys_NK = read_shard(path)
        except BrokenShardError as error:
            if path.exists():  # otherwise another process has removed it meanwhile
                logger.warning("A damaged shard of a cache is not used: %s", error)
                self._known.add(path.name)
            return None
        self._known.add(path.name)
        self._shards.append(shard)
        return _Segment.of(len(self._shards) - 1, shard, keys_NK)


def remove_from_shard(path: Path, keys: Collection[str]) -> None:
    """Remove entries from a shard: the others are written to a new one. Raises OSError, BrokenShardError."""
    shard, keys_NK = read_shard(path)
    left = {key: row for row, key in enumerate(bytes(k).hex() for k in keys_NK) if key not in keys}
    if len(left) == len(keys_NK):
        return
    if left:
        write_shard(path.parent, left, lambda key: shard.read(left[key]))
    path.unlink(missing_ok=True)
