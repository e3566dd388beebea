"""Where the files of tar shards are: each shard's headers are read once, and kept as columns."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modules.system.problem import count

_MAX_SHARDS = 65_536
_known: dict[tuple[str, int, int], ShardIndex] = {}
"""The shards of this process by path, size and date. It is only changed by single assignments: threads share it."""


class ShardMembers(Mapping[str, tuple[int, int]]):
    """The files of a shard by name, in order, each with its place and its size in bytes.

    A name takes its bytes and 24 more, where a dictionary would take 250.
    """

    def __init__(self, names: NDArray[np.uint8], ends_N: NDArray[np.int64], places_N2: NDArray[np.int64]) -> None:
        """`names` are sorted and in UTF-8, one after the other; each ends at one of `ends_N`."""
        self.names, self.ends_N, self.places_N2 = names, ends_N, places_N2

    @classmethod
    def of(cls, members: Mapping[str, tuple[int, int]]) -> ShardMembers:
        """Return files as columns."""
        encoded = sorted((name.encode(errors="surrogatepass"), place) for name, place in members.items())
        ends = np.cumsum([len(name) for name, _ in encoded], dtype=np.int64)
        places = np.array([place for _, place in encoded], np.int64).reshape(-1, 2)
        return cls(np.frombuffer(b"".join(name for name, _ in encoded), np.uint8), ends, places)

    def __getitem__(self, name: str) -> tuple[int, int]:
        wanted = name.encode(errors="surrogatepass")
        first, end = 0, len(self)
        while first < end:
            middle = (first + end) // 2
            if self._name(middle) < wanted:
                first = middle + 1
            else:
                end = middle
        if first == len(self) or self._name(first) != wanted:
            raise KeyError(name)
        offset, size_bytes = self.places_N2[first].tolist()
        return offset, size_bytes

    def __iter__(self) -> Iterator[str]:
        start, content = 0, self.names.tobytes()
        for end in self.ends_N.tolist():
            yield content[start:end].decode(errors="surrogatepass")
            start = end

    def __len__(self) -> int:
        return len(self.ends_N)

    def _name(self, number: int) -> bytes:
        start = int(self.ends_N[number - 1]) if number else 0
        return self.names[start : int(self.ends_N[number])].tobytes()


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The files of a tar shard by name, each with its place and size in bytes, and what is wrong with the shard."""

    members: ShardMembers
    problem: str = ""

    def to_text(self) -> str:
        """Return it as JSON."""
        return json.dumps([self.problem, list(self.members), self.members.places_N2.tolist()])

    @classmethod
    def from_text(cls, text: str) -> ShardIndex:
        """Return the index from a text of `to_text`. Raises ValueError for any other text."""
        problem, names, places = json.loads(text)
        return cls(ShardMembers.of(dict(zip(names, map(tuple, places), strict=True))), problem)


def shard_index(archive: Path) -> ShardIndex:
    """Return the index of a tar shard, made once for as long as the file is the same. Raises OSError."""
    key = _key_of(archive)
    known = _known.get(key)
    if known is None:
        known = _read(archive, size_bytes=key[1])
        _keep(key, known)
    return known


def known_shard(archive: Path) -> ShardIndex | None:
    """Return the index of a tar shard if it is known. Raises OSError."""
    return _known.get(_key_of(archive))


def remember_shard(archive: Path, index: ShardIndex, *, size_bytes: int, mtime_ns: int) -> None:
    """Set the index of a tar shard, valid while the file's size and date are these."""
    _keep((os.fspath(archive), size_bytes, mtime_ns), index)


def columns_of_shards(archives: Iterable[Path]) -> dict[str, NDArray[Any]]:
    """Return the indexes of tar shards as columns, for other processes. Raises OSError.

    `names`, `ends_N` and `places_N2` go through all shards, one after the other; `tables` has for each, as JSON, its
    key, what is wrong with it, and how many members and bytes of names are its own.
    """
    indexes = [(_key_of(archive), shard_index(archive)) for archive in archives]
    members = [index.members for _, index in indexes]
    facts = [(key, index.problem, len(index.members), len(index.members.names)) for key, index in indexes]
    return {
        "names": np.concatenate([np.zeros(0, np.uint8), *(m.names for m in members)]),
        "ends_N": np.concatenate([np.zeros(0, np.int64), *(m.ends_N for m in members)]),
        "places_N2": np.concatenate([np.zeros((0, 2), np.int64), *(m.places_N2 for m in members)]),
        "tables": np.frombuffer(json.dumps(facts).encode(), np.uint8),
    }


def remember_columns(columns: Mapping[str, NDArray[Any]]) -> None:
    """Set the indexes of tar shards that `columns_of_shards` has returned in another process; nothing is copied."""
    member, byte = 0, 0
    for (archive, size_bytes, mtime_ns), problem, num_members, num_bytes in json.loads(columns["tables"].tobytes()):
        of_shard = slice(member, member + num_members)
        names = columns["names"][byte : byte + num_bytes]
        members = ShardMembers(names, columns["ends_N"][of_shard], columns["places_N2"][of_shard])
        remember_shard(Path(archive), ShardIndex(members, problem), size_bytes=size_bytes, mtime_ns=mtime_ns)
        member, byte = member + num_members, byte + num_bytes


def _keep(key: tuple[str, int, int], index: ShardIndex) -> None:
    if len(_known) >= _MAX_SHARDS:
        _known.pop(next(iter(_known)), None)
    _known[key] = index


def _key_of(archive: Path) -> tuple[str, int, int]:
    status = archive.stat()
    return os.fspath(archive), status.st_size, status.st_mtime_ns


def _read(archive: Path, *, size_bytes: int) -> ShardIndex:
    """Read the headers of a tar file, skipping over the contents."""
    members: dict[str, tuple[int, int]] = {}
    num_doubled = 0
    problem = ""
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                if not member.isreg() or member.issparse():
                    continue
                if member.offset_data + member.size > size_bytes:
                    problem = f"cut off in the middle of {member.name}"
                    break
                name = Path(member.name).as_posix().lstrip("/")
                num_doubled += name in members
                members[name] = (member.offset_data, member.size)
    except (tarfile.TarError, EOFError, ValueError) as error:
        problem = (
            f"not a readable tar file ({error})" if not members else f"damaged after {count(len(members), 'file')}"
        )
    if num_doubled and not problem:
        problem = f"{num_doubled:,} of its files have the name of an earlier one and replace it"
    return ShardIndex(ShardMembers.of(members), problem)
