"""Scanning a folder: its images, their sizes and captions, and the skipped files with the reasons."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.data.captions.sources import CaptionFault, CaptionOrigin, read_captions
from modules.data.images import BrokenImageError, opened, seen_size

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".jfif", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff"})
_CAPTION_SUFFIXES = frozenset({".txt", ".caption"})
# Masks and conditioning images of other trainers: never training images.
_COMPANIONS = ("-masklabel", "-condlabel")
_LONGEST = 64  # scaled to cover a bucket, a longer strip would take gigabytes


@dataclass(frozen=True, slots=True)
class SourceImage:
    """An image file on disk; its size is after applying the EXIF orientation."""

    path: Path
    width_px: int
    height_px: int
    size_bytes: int
    mtime_ns: int
    captions: tuple[str, ...]
    caption_fault: CaptionFault = ""
    caption_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that looks like an image but cannot be used, with the reason."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Scan:
    """The contents of a folder, sorted by path."""

    images: tuple[SourceImage, ...]
    skipped: tuple[Skipped, ...]

    @property
    def num_without_caption(self) -> int:
        """How many images have no caption; they are trained with the empty one."""
        return sum(not p.captions for p in self.images)


def scan_folder(folder: Path, *, include_subfolders: bool, captions: CaptionOrigin) -> Scan:
    """Return the contents of `folder`; `captions` is their origin. Only headers are read.

    Raises OSError for an unreadable folder.
    """
    images: list[SourceImage] = []
    skipped: list[Skipped] = []
    for path in sorted(_files(folder, include_subfolders, skipped)):
        if path.suffix.lower() not in SUFFIXES or path.stem.endswith(_COMPANIONS):
            continue
        if path.name.startswith("."):
            skipped.append(Skipped(path, "a hidden file"))
            continue
        found = _look_at(path, captions)
        (images if isinstance(found, SourceImage) else skipped).append(found)  # type: ignore[arg-type]
    return Scan(tuple(images), tuple(sorted(skipped, key=lambda s: s.path)))


def fingerprint_of_folder(folder: Path, *, include_subfolders: bool, other_files: Sequence[Path] = ()) -> str:
    """Return a hash of the paths, sizes and dates of the files that `scan_folder` reads, and of `other_files`.

    No file is opened, so it takes a small fraction of a scan's time. Raises OSError for an unreadable folder.
    """
    read = [p for p in _files(folder, include_subfolders, []) if p.suffix.lower() in (*SUFFIXES, *_CAPTION_SUFFIXES)]
    read += other_files
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(read):
        digest.update(f"{os.fsencode(path)!r} {_size_and_date(path)}\n".encode())
    return digest.hexdigest()


def _size_and_date(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except (OSError, ValueError):  # deleted, or a name that is not a valid file name
        return -1, -1
    return status.st_size, status.st_mtime_ns


def _files(folder: Path, include_subfolders: bool, skipped: list[Skipped]) -> Iterator[Path]:
    """Yield the files of a folder. A folder that is reached twice, through a link, is read once."""
    entered: set[str] = set()
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        real = os.path.realpath(here)
        if real in entered:
            continue
        entered.add(real)
        try:
            with os.scandir(here) as entries:
                found = list(entries)
        except OSError as error:
            if here == folder:
                raise
            skipped.append(Skipped(here, f"a folder that cannot be listed ({error.strerror})"))
            continue
        for entry in found:
            if _holds(entry.is_file):
                yield Path(entry.path)
            elif include_subfolders and not entry.name.startswith(".") and _holds(entry.is_dir):
                waiting.append(Path(entry.path))


def _holds(test: Callable[[], bool]) -> bool:
    try:
        return test()
    except OSError:  # a link to itself
        return False


def _look_at(path: Path, origin: CaptionOrigin) -> SourceImage | Skipped:
    try:
        status = path.stat()
        if status.st_size == 0:
            return Skipped(path, "an empty file")
        with opened(path) as image:
            width_px, height_px = seen_size(image)
    except BrokenImageError as error:
        return Skipped(path, error.reason)
    except OSError as error:
        return Skipped(path, f"cannot be read ({error.strerror})")
    if max(width_px, height_px) > _LONGEST * min(width_px, height_px):
        return Skipped(path, f"more than {_LONGEST} times as long as wide ({width_px}x{height_px})")
    found = read_captions(path, origin)
    return SourceImage(
        path, width_px, height_px, status.st_size, status.st_mtime_ns, found.texts, found.fault, found.file
    )
