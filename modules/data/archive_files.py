"""The files of an archive, listed like files in a folder: members of a tar shard, rows of a Parquet or Arrow file.

A scan gets a few thousand of them at a time: the paths of all images of a large data set are never in memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from modules.data.cache.image_index import ImageIndex
from modules.data.folder_files import FolderFiles, suffix_of
from modules.data.folder_scan import ImageFiles
from modules.data.listing import SkippedEntry, images_in_shard, is_hidden_archive, num_rows_of, sample_name
from modules.data.shard_index import ShardIndex, known_shard, remember_shard, shard_index
from modules.data.tables import ROW_SUFFIX, TABLE_SUFFIXES, row_name

_AT_ONCE = 4096


class ArchiveFiles(Protocol):
    """The files of an archive that has images."""

    @property
    def num_images(self) -> int:
        """The number of images."""
        ...

    def parts(self) -> Iterator[ImageFiles]:
        """Yield the files, in order, and which of them are images."""
        ...


def files_of_archive(archive: Path, index: ImageIndex | None, skipped: list[SkippedEntry]) -> ArchiveFiles | None:
    """Return the files of an archive; None without images. What is wrong with it is added to `skipped`.

    The headers of a shard that `index` knows are not read; the headers of another shard are added to it.
    """
    if is_hidden_archive(archive, skipped):
        return None
    try:
        status = archive.stat()
        if archive.suffix.lower() in TABLE_SUFFIXES:
            num_rows = num_rows_of(archive, skipped)
            return _Rows(archive, num_rows, status.st_size, status.st_mtime_ns) if num_rows else None
        shard = _shard(archive, index, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns)
        if shard.problem:
            skipped.append(SkippedEntry(archive, shard.problem))
        images = array("q", images_in_shard(archive, list(shard.members), skipped))
        return _Members(archive, shard, images, status.st_mtime_ns) if images else None
    except OSError as error:
        skipped.append(SkippedEntry(archive, error.strerror or str(error)))
        return None


def _shard(archive: Path, index: ImageIndex | None, *, size_bytes: int, mtime_ns: int) -> ShardIndex:
    """Return the index of a shard, from an earlier scan or read now. Raises OSError."""
    if index is None:
        return shard_index(archive)
    text = index.others.find(archive, size_bytes=size_bytes, mtime_ns=mtime_ns)
    if text is not None and known_shard(archive) is None:
        with suppress(ValueError):  # damaged: it is read again
            remember_shard(archive, ShardIndex.from_text(text), size_bytes=size_bytes, mtime_ns=mtime_ns)
    members = shard_index(archive)
    if text is None:
        index.others.keep(archive, members.to_text(), size_bytes=size_bytes, mtime_ns=mtime_ns)
    return members


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a table, each of which has an image."""

    table: Path
    num_images: int
    size_bytes: int
    mtime_ns: int

    def parts(self) -> Iterator[ImageFiles]:
        """Yield the rows, with the size and the date of the file."""
        for first in range(0, self.num_images, _AT_ONCE):
            count = min(_AT_ONCE, self.num_images - first)
            names = [row_name(row) for row in range(first, first + count)]
            sizes, mtimes = array("q", [self.size_bytes]) * count, array("q", [self.mtime_ns]) * count
            files = FolderFiles(self.table, names, [ROW_SUFFIX] * count, sizes, mtimes)
            yield ImageFiles(files, array("q", range(count)))


@dataclass(frozen=True, slots=True)
class _Members:
    """The members of a shard; `images` are the places of the images among them."""

    shard: Path
    index: ShardIndex
    images: array[int]
    mtime_ns: int

    @property
    def num_images(self) -> int:
        """The number of images."""
        return len(self.images)

    def parts(self) -> Iterator[ImageFiles]:
        """Yield the members with the date of the shard, a sample's members together, by their folders in the shard."""
        names, sizes = list(self.index.members), self.index.members.places_N2[:, 1]
        for first, end in _runs(names):
            folder, _, _ = names[first].rpartition("/")
            plain = [name[len(folder) + 1 if folder else 0 :] for name in names[first:end]]
            suffixes = [suffix_of(name).lower() for name in plain]
            mtimes = array("q", [self.mtime_ns]) * len(plain)
            files = FolderFiles(self.shard / folder, plain, suffixes, array("q", sizes[first:end].tolist()), mtimes)
            some = self.images[bisect_left(self.images, first) : bisect_left(self.images, end)]
            yield ImageFiles(files, array("q", (place - first for place in some)), of_samples=True)


def _runs(names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of members that follow each other in one folder; a long run ends with a sample."""
    first, folder, sample = 0, "", ""
    for place, name in enumerate(names):
        here, of_sample = name.rpartition("/")[0], sample_name(name)
        is_long = place - first >= _AT_ONCE and of_sample != sample
        if place > first and (here != folder or is_long):
            yield first, place
            first = place
        folder, sample = here, of_sample
    if names:
        yield first, len(names)
