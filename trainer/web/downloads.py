"""The results of a run that the page sends: a file as it is, a folder as a zip file that is made while it is sent.

A result may be anywhere. It is sent only while it has the digests that its run recorded.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

from trainer.run_folder.backup import has_size
from trainer.run_folder.result import WrittenFile, results_of
from trainer.web.runs import id_of, real_files

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Download:
    """A file or a folder that can be downloaded. `written` are the records of its files; empty for a model in the run's
    own folder.
    """

    path: Path
    size_bytes: int
    written: tuple[WrittenFile, ...] = ()

    @property
    def name(self) -> str:
        """The name of the file that is sent."""
        return f"{self.path.name}.zip" if self.path.is_dir() else self.path.name

    @property
    def is_as_written(self) -> bool:
        """Whether all of it still has the content that its run wrote. A large file is read once."""
        return all(_is_unchanged(file, *_stamp(file.path)) for file in self.written)

    def zip_chunks(self) -> Iterator[bytes]:
        """Yield a folder as a zip file without compression: weights cannot be compressed."""
        pipe = _Pipe()
        with zipfile.ZipFile(cast("IO[bytes]", pipe), "w", zipfile.ZIP_STORED) as archive:
            for file in self.written:
                info = zipfile.ZipInfo(file.path.relative_to(self.path.parent).as_posix())
                with archive.open(info, "w", force_zip64=True) as entry, file.path.open("rb") as content:
                    while chunk := content.read(_CHUNK_BYTES):
                        entry.write(chunk)
                        yield pipe.take()
        yield pipe.take()


def downloads_of(run_dir: Path) -> dict[str, Download]:
    """Return the results of a run and its saved models that are there, by their ids; the newest result first."""
    downloads: dict[str, Download] = {}
    for result in reversed(results_of(run_dir)):
        if result.is_abandoned:
            continue
        inside = tuple(file for file in result.files if result.path in file.path.parents)
        groups = [(result.path, inside)] if inside else []
        groups += [(file.path, (file,)) for file in result.files if file not in inside]
        for path, files in groups:
            if all(has_size(file.path, file.size_bytes) for file in files):
                downloads.setdefault(id_of(path), Download(path, sum(f.size_bytes for f in files), files))
    for path in sorted(real_files(run_dir / "save")):
        downloads.setdefault(id_of(path), Download(path, path.stat().st_size))
    return downloads


class _Pipe(io.RawIOBase):
    """A file that a zip is written to. It keeps bytes until they are taken. It cannot seek: sizes follow contents."""

    def __init__(self) -> None:
        self._written = bytearray()

    def writable(self) -> bool:
        """It can be written."""
        return True

    def write(self, content: Any) -> int:
        """Add bytes."""
        self._written += content
        return len(content)

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        content = bytes(self._written)
        self._written.clear()
        return content


@lru_cache(maxsize=256)
def _is_unchanged(written: WrittenFile, _mtime_ns: int, _inode: int) -> bool:
    return written.is_unchanged()


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_ino
