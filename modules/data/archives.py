"""Files inside archives: tar shards, as WebDataset writes them, and the images in the rows of Parquet and Arrow files.

A path below an archive names one of its files: `shards/0001.tar/000123.jpg`. Each archive is indexed once, so any
of its files is read at its place without reading the files before it, so a run can resume in the middle of a shard, and
shuffle over all of them.
"""

from __future__ import annotations

import errno
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.data.shard_index import shard_index
from modules.data.tables import ROW_SUFFIX, TABLE_SUFFIXES, read_row_image, row_and_column
from modules.system.regular_files import FileTooLargeError, open_regular

SHARD_SUFFIXES = frozenset({".tar"})
ARCHIVE_SUFFIXES = SHARD_SUFFIXES | TABLE_SUFFIXES


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The size of a file and its modification time.

    A file in an archive has the time of the archive; an image in a row of a Parquet or Arrow file also has its size.
    """

    size_bytes: int
    mtime_ns: int


def archive_of(path: Path) -> Path | None:
    """Return the archive that a path leads into; None for a path of the file system itself."""
    return next((p for p in path.parents if p.suffix.lower() in ARCHIVE_SUFFIXES and p.is_file()), None)


def open_file(path: Path) -> io.BufferedReader | io.BytesIO:
    """Open a regular file for reading, also one inside an archive. Raises OSError."""
    try:
        return open_regular(path)
    except (NotADirectoryError, FileNotFoundError):
        archive = archive_of(path)
        if archive is None:
            raise
    if archive.suffix.lower() in TABLE_SUFFIXES:
        return io.BytesIO(read_row_image(archive, *_row(archive, path)))
    return io.BufferedReader(_Part(archive, *_place(archive, path)))


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file, also of one inside an archive. Raises OSError, also for a larger file."""
    with open_file(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise FileTooLargeError(path, max_bytes)
    return content


def status_of(path: Path) -> FileStatus:
    """Return the size and time of a file, also of one inside an archive. Raises OSError."""
    try:
        status = path.stat()
        return FileStatus(status.st_size, status.st_mtime_ns)
    except (NotADirectoryError, FileNotFoundError):
        archive = archive_of(path)
        if archive is None:
            raise
    status = archive.stat()
    is_row = archive.suffix.lower() in TABLE_SUFFIXES and _row(archive, path)[0] >= 0
    return FileStatus(status.st_size if is_row else _place(archive, path)[1], status.st_mtime_ns)


class _Part(io.RawIOBase):
    """A part of a file, as a separate file."""

    def __init__(self, file: Path, offset: int, size_bytes: int) -> None:
        super().__init__()
        self._file = file.open("rb")
        self._offset, self._size_bytes, self._position = offset, size_bytes, 0

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that its position can be set."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set and return the position in the part."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the position on; return how many bytes were read, 0 at the end."""
        wanted = max(0, min(len(buffer), self._size_bytes - self._position))
        self._file.seek(self._offset + self._position)
        content = self._file.read(wanted)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def close(self) -> None:
        """Also close the file."""
        self._file.close()
        super().close()


def _row(archive: Path, path: Path) -> tuple[int, str]:
    """Return the row and the column that a path into a Parquet or Arrow file names. Raises FileNotFoundError."""
    if path.suffix != ROW_SUFFIX or path.parent != archive:
        raise FileNotFoundError(errno.ENOENT, f"not in {archive.name}", str(path))
    return row_and_column(path.name)


def _place(archive: Path, path: Path) -> tuple[int, int]:
    name = path.relative_to(archive).as_posix()
    try:
        return shard_index(archive).members[name]
    except KeyError:
        raise FileNotFoundError(errno.ENOENT, f"not in {archive.name}", str(path)) from None
