"""The digests of files: their content as cache keys contain it."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from modules.data.archives import FileStatus, open_file, status_of
from modules.data.cache.stat_index import StatedFile, StatIndex

_ASKED_AT_ONCE = 500  # files
_MAX_AHEAD = 64  # files that are read before their digest is needed
_SAVED_EVERY = 200  # digests


@dataclass(frozen=True, slots=True)
class DigestedFile:
    """A file whose digest is part of a key; the digest is empty while only the file's size and time are known."""

    file: StatedFile
    digest: str = ""

    def require_unchanged(self) -> None:
        """Raise OSError if the file no longer has the content of the key.

        For what is stored under the key after the file was read: another content would be found under it ever after.
        """
        if not _is_as_stated(self.file) and not (self.digest and _digest_of(self.file.path) == self.digest):
            raise OSError("it was changed while the caches were filled; start again to use it")


class DigestIndex:
    """The digests of files, stored by path, size and modification time, so that no file is read twice."""

    def __init__(self, cache_dir: Path | None) -> None:
        """Without a folder the digests are kept in memory only."""
        self._index = StatIndex(cache_dir / "digests.sqlite" if cache_dir else None, table="digests", column="digest")

    def digest(self, path: Path, *, size_bytes: int, mtime_ns: int, verify: bool = False) -> str:
        """Return the digest of a file's content; read it only if it is new, changed, or `verify` is set.

        Raises OSError where it cannot be read.
        """
        known = None if verify else self._index.find(path, size_bytes=size_bytes, mtime_ns=mtime_ns)
        return self._read(path, size_bytes, mtime_ns) if known is None else known

    def known_digests(self, files: Sequence[StatedFile]) -> list[str | None]:
        """Return the digests of files that have not changed since they were read; None for the others."""
        return self._index.find_all(files)

    def digests(
        self, files: Iterable[StatedFile], *, threads: int = 1, verify: bool = False
    ) -> Generator[str, None, None]:
        """Yield the digest of each file, in their order. `threads` read ahead.

        New digests are saved after every 200 of them, and when the iterator ends or is closed.
        """
        waiting: deque[Future[str] | str] = deque()
        with ThreadPoolExecutor(threads, thread_name_prefix="darkroom-digest") as pool:
            try:
                for some in _batches(files, _ASKED_AT_ONCE):
                    for file, known in zip(
                        some, [None] * len(some) if verify else self.known_digests(some), strict=True
                    ):
                        if known is None:
                            waiting.append(pool.submit(self._read, file.path, file.size_bytes, file.mtime_ns))
                        else:
                            waiting.append(known)
                        if len(waiting) >= _MAX_AHEAD:
                            yield _result(waiting.popleft())
                while waiting:
                    yield _result(waiting.popleft())
            finally:
                pool.shutdown(cancel_futures=True)
                self.save()

    def keep(self, file: StatedFile, digest: str) -> None:
        """Set the digest of a file that another process has read."""
        self._index.keep(file.path, digest, size_bytes=file.size_bytes, mtime_ns=file.mtime_ns)

    def save(self) -> None:
        """Write the digests added since the last save."""
        self._index.save()

    def _read(self, path: Path, size_bytes: int, mtime_ns: int) -> str:
        digest = _digest_of(path)
        if status_of(path) == FileStatus(size_bytes, mtime_ns):  # else these name another content, which may come back
            self._index.keep(path, digest, size_bytes=size_bytes, mtime_ns=mtime_ns)
        if self._index.num_unsaved >= _SAVED_EVERY:
            self.save()
        return digest


def _digest_of(path: Path) -> str:
    with open_file(path) as handle:
        return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=20)).hexdigest()


def _is_as_stated(file: StatedFile) -> bool:
    return status_of(file.path) == FileStatus(file.size_bytes, file.mtime_ns)


def _result(digest: Future[str] | str) -> str:
    return digest if isinstance(digest, str) else digest.result()


def _batches(files: Iterable[StatedFile], size: int) -> Iterator[list[StatedFile]]:
    source = iter(files)
    while some := list(islice(source, size)):
        yield some
