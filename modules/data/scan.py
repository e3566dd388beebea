"""Scanning a source: its images, their sizes and captions, and the skipped files with the reasons."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from modules.data.archives import ARCHIVE_SUFFIXES, FileStatus, status_of
from modules.data.cache.stat_index import StatIndex
from modules.data.captions.sources import CaptionFault, CaptionOrigin, CaptionTexts, read_captions
from modules.data.images import BrokenImageError, open_image, upright_size
from modules.data.links import LEADS_OUT, leads_out
from modules.data.listing import SUFFIXES, SkippedEntry, list_images, walk
from modules.data.metadata import METADATA_SUFFIXES, MetadataCaptions
from modules.data.tables import ROW_SUFFIX

Watch = Callable[[int, int], None]
"""Called during a scan with the number of images that are done and of all; may raise to stop it."""

_CAPTION_SUFFIXES = frozenset({".txt", ".caption"})
READ_SUFFIXES = SUFFIXES | ARCHIVE_SUFFIXES | _CAPTION_SUFFIXES | METADATA_SUFFIXES
_LONGEST = 64  # scaled to cover a bucket, a longer strip would take gigabytes
WATCHED_EVERY = 100  # images


@dataclass(frozen=True, slots=True)
class SourceImage:
    """An image file; its size is after applying the EXIF orientation.

    The path of an image in an archive leads into the archive. `is_transparent`: it may have transparent places.
    A prompt without an image is one too, with `has_image` unset: its path leads to its line in the file of prompts,
    and its size is the size of the images sampled for it.
    `rejected` is the other image of a preference pair, whose chosen image this is.
    """

    path: Path
    width_px: int
    height_px: int
    size_bytes: int
    mtime_ns: int
    captions: tuple[str, ...]
    caption_fault: CaptionFault = ""
    caption_file: Path | None = None
    is_transparent: bool = False
    has_image: bool = True
    rejected: SourceImage | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """The contents of a source, sorted by path."""

    images: tuple[SourceImage, ...]
    skipped: tuple[SkippedEntry, ...]

    @property
    def num_without_caption(self) -> int:
        """The number of images without a caption; they are trained with the empty one."""
        return sum(not p.captions for p in self.images)


def ignore_progress(_done: int, _all: int) -> None:
    """Do nothing: the `Watch` of a scan without progress."""


def image_index(cache_dir: Path | None) -> StatIndex:
    """Return the index of the images that were scanned before, in the cache folder; None keeps it in memory only."""
    return StatIndex(cache_dir / "images.sqlite" if cache_dir else None, table="images", column="facts")


def scan_folder(
    folder: Path,
    *,
    include_subfolders: bool,
    captions: CaptionOrigin,
    index: StatIndex | None = None,
    watch: Watch = ignore_progress,
) -> Scan:
    """Return the contents of a folder, or of a single image, tar shard or table; `captions` is the origin of captions.

    Only headers are read, and of images in `index` none; new ones are added to it, and not saved. Raises OSError for
    an unreadable source.
    """
    listing = list_images(folder, include_subfolders=include_subfolders)
    metadata = MetadataCaptions(folder, file=captions.file, columns=captions.columns)
    images: list[SourceImage] = []
    skipped = list(listing.skipped)
    for number, path in enumerate(listing.images):
        if number % WATCHED_EVERY == 0:
            watch(number, len(listing.images))
        seen = inspect_image(path, partial(captions_of, path, captions, metadata), index, within=folder)
        (images if isinstance(seen, SourceImage) else skipped).append(seen)  # type: ignore[arg-type]
    skipped += metadata.problems(listing.images)
    return Scan(tuple(images), tuple(sorted(skipped, key=lambda s: s.path)))


def fingerprint_of_folder(folder: Path, *, include_subfolders: bool, other_files: Sequence[Path] = ()) -> str:
    """Return a hash of the paths, sizes and dates of the files that `scan_folder` reads, and of `other_files`.

    No file is opened, so it takes a small fraction of a scan's time. Raises OSError for an unreadable folder.
    """
    read = [*_read_metadata_files(folder, include_subfolders), *other_files]
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(read):
        digest.update(f"{os.fsencode(path)!r} {_size_and_date(path)}\n".encode())
    return digest.hexdigest()


def _read_metadata_files(source: Path, include_subfolders: bool) -> Iterator[Path]:
    """Yield the files that a scan of a source may read, itself among them; of a single file also missing ones."""
    if source.is_file():
        yield source
        yield from (source.with_suffix(s) for s in (*_CAPTION_SUFFIXES, ".json"))
        yield from (source.with_name(f"metadata{s}") for s in METADATA_SUFFIXES)
        return
    for path in walk(source, include_subfolders=include_subfolders, skipped=[]):
        if path.suffix.lower() in READ_SUFFIXES:
            yield path


def _size_and_date(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except (OSError, ValueError):  # deleted, or a name that is not a valid file name
        return -1, -1
    return status.st_size, status.st_mtime_ns


def inspect_image(
    path: Path, captions: Callable[[], CaptionTexts], index: StatIndex | None, *, within: Path
) -> SourceImage | SkippedEntry:
    """Return an image with its size and its captions, or why it cannot be used. Only its header is read.

    `within` is the concept's source: an image there that is a link to another place is not used.
    """
    if path.is_relative_to(within) and leads_out(path, within):
        return SkippedEntry(path, LEADS_OUT)
    try:
        status = status_of(path)
        if status.size_bytes == 0:
            return SkippedEntry(path, "an empty file")
        width_px, height_px, is_transparent = _header(path, status, index)
    except BrokenImageError as error:
        return SkippedEntry(path, error.reason)
    except OSError as error:
        return SkippedEntry(path, f"cannot be read ({error.strerror})")
    if max(width_px, height_px) > _LONGEST * min(width_px, height_px):
        return SkippedEntry(path, f"more than {_LONGEST} times as long as wide ({width_px}x{height_px})")
    texts = captions()
    return SourceImage(
        path,
        width_px,
        height_px,
        status.size_bytes,
        status.mtime_ns,
        texts.texts,
        texts.fault,
        texts.file,
        is_transparent,
    )


def _header(path: Path, status: FileStatus, index: StatIndex | None) -> tuple[int, int, bool]:
    """Return the width and height in px of an image, and whether it may be transparent. Raises BrokenImageError."""
    facts = {"size_bytes": status.size_bytes, "mtime_ns": status.mtime_ns}
    known = index.find(path, **facts) if index is not None else None
    if known is not None:
        width, height, transparent = known.split()
        return int(width), int(height), transparent == "1"
    with open_image(path) as image:
        width_px, height_px = upright_size(image)
        is_transparent = image.has_transparency_data
    if index is not None:
        index.keep(path, f"{width_px} {height_px} {is_transparent:d}", **facts)
    return width_px, height_px, is_transparent


def captions_of(image: Path, origin: CaptionOrigin, metadata: MetadataCaptions) -> CaptionTexts:
    """Return the captions of an image. Those of an image in a table are in the other columns of its row."""
    has_columns = image.suffix == ROW_SUFFIX and origin.source in ("text_file", "file_name")
    if origin.source != "metadata" and not has_columns:
        return read_captions(image, origin, within=metadata.source)
    texts = metadata.texts_of(image)
    return CaptionTexts(texts, "" if texts else "missing")


ENCODINGS: dict[CaptionFault, str] = {"utf-16": "UTF-16", "cp1252": "Windows-1252", "latin-1": "Latin-1"}


def fault_of_caption(image: SourceImage) -> str:
    """Return the problem with an image's caption, as a phrase; empty without one."""
    name = image.caption_file.name if image.caption_file else ""
    match image.caption_fault:
        case "":
            return ""
        case "missing":
            return f"{name} does not exist or cannot be read" if name else "it has no caption"
        case "link":
            return f"{name} is {LEADS_OUT}"
        case "empty":
            return f"{name} is empty" if name else "its caption is empty"
        case encoding:
            return f"{name} is not valid UTF-8 and was read as {ENCODINGS[encoding]}"
