"""Files that are sent to a machine by their content: only those that it lacks, in parts that can be resumed.

A tree is a set of files with their names. Its key is made of their digests, so a tree that is there never changes, and
the same files are sent once, whatever they are called.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.data.cache.digests import DigestIndex
from modules.system.errors import DarkroomError
from trainer.events import DownloadProgress
from trainer.remote.connection import Connection

_BATCH_BYTES, _PART_BYTES = 8 << 20, 4 << 20
_THREADS = 4


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file of this machine with its name in a tree."""

    name: str
    path: Path
    size_bytes: int
    mtime_ns: int

    @property
    def path_text(self) -> str:
        """The path as text."""
        return str(self.path)


@dataclass(frozen=True, slots=True)
class Tree:
    """Files that belong together."""

    files: tuple[SentFile, ...]


def files_below(folder: Path) -> Iterator[SentFile]:
    """Yield the files of a folder by their path in it; hidden ones are left out. Links are followed."""
    seen = set[str]()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and real not in seen)
        seen.add(real)
        for name in sorted(names):
            path = Path(place, name)
            if not name.startswith("."):
                yield from stat_file(path, path.relative_to(folder).as_posix())


def stat_file(path: Path, name: str) -> Iterator[SentFile]:
    """Yield a file with its size and time, unless it is not there."""
    try:
        status = path.stat()
    except OSError:
        return
    yield SentFile(name, path, status.st_size, status.st_mtime_ns)


def send_trees(
    connection: Connection,
    trees: Sequence[Tree],
    *,
    cache_dir: Path | None,
    progress: Callable[[DownloadProgress], None],
    check: Callable[[], None] = lambda: None,
) -> list[str]:
    """Send the missing files of trees, and return the folder of each tree on the machine.

    The digests of files are kept in `cache_dir`, so that no file is read twice. `check` may raise to stop. Raises
    DarkroomError, ConnectionLostError, OSError.
    """
    files = [file for tree in trees for file in tree.files]
    digests = list(_digests(files, cache_dir, check))
    of_digest = dict(zip(digests, files, strict=True))
    answer = connection.call("missing", digests=list(of_digest))[0]
    missing: dict[str, int] = answer["parts"]
    todo = {digest: of_digest[digest] for digest in missing}
    needed_bytes = sum(file.size_bytes for file in todo.values()) - sum(missing.values())
    _refuse_full(connection, needed_bytes, answer["free_bytes"])
    meter = _Meter(sum(file.size_bytes for file in todo.values()), progress)
    small = {digest: file for digest, file in todo.items() if file.size_bytes <= _PART_BYTES}
    for batch in _batches(small):
        check()
        contents = [file.path.read_bytes() for _, file in batch]
        connection.call(
            "put",
            b"".join(contents),
            files=[(digest, len(content)) for (digest, _), content in zip(batch, contents, strict=True)],
        )
        meter.add(sum(map(len, contents)))
    for digest, file in todo.items():
        if digest not in small:
            _send_large(connection, digest, file, missing[digest], meter, check)
    places, start = [], 0
    for tree in trees:
        of_tree = digests[start : start + len(tree.files)]
        start += len(of_tree)
        entries = sorted((file.name, digest) for file, digest in zip(tree.files, of_tree, strict=True))
        key = hashlib.blake2b(json.dumps(entries).encode(), digest_size=10).hexdigest()
        places.append(str(connection.call("tree", key=key, files=entries)[0]))
    return places


def _digests(files: Sequence[SentFile], cache_dir: Path | None, check: Callable[[], None]) -> Iterator[str]:
    for digest in DigestIndex(cache_dir).digests(files, threads=_THREADS):
        check()
        yield digest


def _refuse_full(connection: Connection, needed_bytes: int, free_bytes: int) -> None:
    """Raise DarkroomError if the disk there has too little room for the files."""
    if needed_bytes > free_bytes:
        name, folder = connection.remote.name, connection.facts["folder"]
        raise DarkroomError(
            f"The disk of {name} is too full: {needed_bytes / 1e9:.2f} GB needed in {folder}, "
            f"{free_bytes / 1e9:.2f} GB free.",
            advice="Free some space there, or choose another folder for it with: remote add --folder.",
        )


def _send_large(
    connection: Connection, digest: str, file: SentFile, offset: int, meter: _Meter, check: Callable[[], None]
) -> None:
    """Send a file in parts, from where an earlier connection has ended."""
    meter.skip(offset)
    with file.path.open("rb") as content:
        content.seek(offset)
        while part := content.read(_PART_BYTES):
            check()
            connection.call("part", part, digest=digest, offset=offset)
            offset += len(part)
            meter.add(len(part))
    connection.call("finish", digest=digest)


def _batches(files: dict[str, SentFile]) -> Iterable[list[tuple[str, SentFile]]]:
    batch: list[tuple[str, SentFile]] = []
    size = 0
    for digest, file in files.items():
        if batch and size + file.size_bytes > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((digest, file))
        size += file.size_bytes
    if batch:
        yield batch


class _Meter:
    """Reports the bytes sent, with the time that is left at the speed so far."""

    def __init__(self, total_bytes: int, progress: Callable[[DownloadProgress], None]) -> None:
        self._total, self._done, self._skipped = total_bytes, 0, 0
        self._progress, self._began = progress, time.monotonic()

    def skip(self, num_bytes: int) -> None:
        """Count bytes that were there."""
        self._done += num_bytes
        self._skipped += num_bytes

    def add(self, num_bytes: int) -> None:
        """Count bytes that were sent."""
        self._done += num_bytes
        sent, seconds = self._done - self._skipped, time.monotonic() - self._began
        left = seconds / sent * (self._total - self._done) if sent else None
        self._progress(DownloadProgress(self._done / 1e6, self._total / 1e6, left))
