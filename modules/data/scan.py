"""Scanning a source: its images, their sizes and captions, and the skipped files with the reasons."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from pathlib import Path

from modules.data import listing
from modules.data.archive_files import files_of_archive
from modules.data.archives import ARCHIVE_SUFFIXES, FileStatus, status_of
from modules.data.cache.image_index import ImageIndex
from modules.data.captions.sources import CaptionFault, CaptionOrigin, CaptionTexts, read_captions
from modules.data.folder_files import FolderFiles, PackedFiles, list_files
from modules.data.folder_scan import FolderScan, ImageFiles, images_among, shared_captions
from modules.data.images import BrokenImageError, open_image, upright_size
from modules.data.links import LEADS_OUT, leads_out
from modules.data.metadata import METADATA_SUFFIXES, MetadataCaptions
from modules.data.source_image import SourceImage, too_long
from modules.data.tables import ROW_SUFFIX

Watch = Callable[[int, int], None]
"""Called during a scan with the number of images that are done and of all; may raise to stop it."""

_CAPTION_SUFFIXES = frozenset({".txt", ".caption"})
READ_SUFFIXES = listing.SUFFIXES | ARCHIVE_SUFFIXES | _CAPTION_SUFFIXES | METADATA_SUFFIXES
_REPORTED_SUFFIXES = READ_SUFFIXES | listing.NOT_READ.keys()


@dataclass(frozen=True, slots=True)
class Scan:
    """The contents of a source, sorted by path."""

    images: tuple[SourceImage, ...]
    skipped: tuple[listing.SkippedEntry, ...]
    fingerprint: str = field(default="", compare=False)
    """A hash of the paths, sizes and dates of the files, from before they were opened."""
    excluded: tuple[SourceImage, ...] = ()
    """The images that the concept leaves out."""

    @property
    def num_without_caption(self) -> int:
        """The number of images without a caption; they are trained with the empty one."""
        return sum(not p.captions for p in self.images)


def without_excluded(scan: Scan, source: Path, names: Collection[str]) -> Scan:
    """Return a scan of a source in which images are `excluded`, by their names within it (`name_within`)."""
    last_parts = {name.rpartition("/")[2] for name in names}  # few images have such a name, and need their whole one
    excluded = {
        place
        for place, image in enumerate(scan.images)
        if image.file_name.rpartition("/")[2] in last_parts and name_within(source, image.path) in names
    }
    if not excluded:
        return scan
    used = tuple(image for place, image in enumerate(scan.images) if place not in excluded)
    return replace(scan, images=used, excluded=tuple(scan.images[place] for place in sorted(excluded)))


def name_within(source: Path, image: Path) -> str:
    """Return the path of an image within a source, with slashes; its whole path if it lies elsewhere."""
    if image == source:
        return image.name
    return image.relative_to(source).as_posix() if image.is_relative_to(source) else image.as_posix()


def ignore_progress(_done: int, _all: int) -> None:
    """Do nothing: the `Watch` of a scan without progress."""


def never_stop() -> None:
    """Do nothing: the check of a scan that is not stopped while it lists folders."""


def image_index(cache_dir: Path | None) -> ImageIndex:
    """Return the index of the images that were scanned before, in the cache folder; None keeps it in memory only."""
    return ImageIndex(cache_dir / "images.sqlite" if cache_dir else None)


def scan_folder(
    folder: Path,
    *,
    include_subfolders: bool,
    captions: CaptionOrigin,
    index: ImageIndex | None = None,
    watch: Watch = ignore_progress,
    check: Callable[[], None] = never_stop,
) -> Scan:
    """Return the contents of a folder, or of a single image, tar shard or table; `captions` is the origin of captions.

    Only headers are read, and of files in `index` nothing; new ones are added to it, and not saved. `check` is called
    for each folder that is listed, and may raise to stop. Raises OSError for an unreadable source.
    """
    metadata = MetadataCaptions(folder, file=captions.file, columns=captions.columns)
    skipped: list[listing.SkippedEntry] = []
    if folder.is_file():
        fingerprint = fingerprint_of_folder(folder, include_subfolders=False)
        if folder.suffix.lower() not in ARCHIVE_SUFFIXES:
            seen = inspect_image(folder, partial(captions_of, folder, captions, metadata), index, within=folder)
            images = (seen,) if isinstance(seen, SourceImage) else ()
            skipped += [seen] if isinstance(seen, listing.SkippedEntry) else metadata.problems([folder])
            return Scan(images, tuple(sorted(skipped, key=lambda s: s.path)), fingerprint)
        archives = [folder]
    else:
        files_by_folder = list_files(
            folder, include_subfolders=include_subfolders, leave_out=listing.skipped_recorder(skipped), check=check
        )
        listed = [PackedFiles.of(files) for files in files_by_folder]
        fingerprint = _fingerprint((part.unpack() for part in listed), ())
        images_of = [images_among(part.unpack(), listing.SUFFIXES, skipped).images for part in listed]
        if any(images_of):
            for part in listed:
                skipped += listing.skipped_archives(_archives_in(part.unpack()))
            parts = (ImageFiles(part.unpack(), among) for part, among in zip(listed, images_of, strict=True))
            num_images = sum(map(len, images_of))
            return _scan_files(folder, parts, num_images, captions, metadata, index, watch, skipped, fingerprint)
        files = [part.files.folder / name for part in listed for name in part.unpack().names]
        archives = listing.archives_among(folder, files, skipped)
    inside = [a for archive in archives if (a := files_of_archive(archive, index, skipped)) is not None]
    parts = (part for archive in inside for part in archive.parts())
    num_images = sum(archive.num_images for archive in inside)
    return _scan_files(folder, parts, num_images, captions, metadata, index, watch, skipped, fingerprint)


def _archives_in(files: FolderFiles) -> Iterator[Path]:
    are_archives = (suffix in ARCHIVE_SUFFIXES for suffix in files.suffixes)
    return (files.folder / name for name in compress(files.names, are_archives))


def _scan_files(
    folder: Path,
    parts: Iterable[ImageFiles],
    num_images: int,
    captions: CaptionOrigin,
    metadata: MetadataCaptions,
    index: ImageIndex | None,
    watch: Watch,
    skipped: list[listing.SkippedEntry],
    fingerprint: str,
) -> Scan:
    """Return the scan of a folder of image files, or of archives."""
    shared = shared_captions(captions, folder)
    names_images = captions.source == "metadata" or listing.is_metadata(folder)
    paths: list[Path] = []  # only where a file may name images that are not there

    def captions_of_image(path: Path) -> CaptionTexts:
        return captions_of(path, captions, metadata) if shared is None else shared

    def with_paths() -> Iterator[ImageFiles]:
        for part in parts:
            if names_images:
                paths.extend(part.files.folder / part.files.names[place] for place in part.images)
            yield part

    scan = FolderScan(captions, folder, captions_of_image, index, skipped)
    images = tuple(scan.images(with_paths(), num_images, watch))
    skipped += metadata.problems(paths)
    return Scan(images, tuple(sorted(skipped, key=lambda s: s.path)), fingerprint)


def fingerprint_of_folder(
    folder: Path,
    *,
    include_subfolders: bool,
    other_files: Sequence[Path] = (),
    check: Callable[[], None] = never_stop,
) -> str:
    """Return a hash of the paths, sizes and dates of the files that `scan_folder` reads, and of `other_files`.

    No file is opened, so it takes a small fraction of a scan's time. `check` is as there. Raises OSError for an
    unreadable folder.
    """
    if folder.is_file():
        return _fingerprint((), [*_files_next_to(folder), *other_files])
    listed = list_files(folder, include_subfolders=include_subfolders, leave_out=lambda _entry: None, check=check)
    return _fingerprint(listed, other_files)


def fingerprint_of_files(files: Sequence[Path]) -> str:
    """Return a hash of the paths, sizes and dates of files, also of missing ones."""
    return _fingerprint((), files)


def _fingerprint(listed: Iterable[FolderFiles], other_files: Sequence[Path]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for files in listed:
        are_read = [suffix in _REPORTED_SUFFIXES for suffix in files.suffixes]
        names = "\0".join([str(files.folder), *compress(files.names, are_read)])
        digest.update(os.fsencode(names) if any(are_read) else b"")
        digest.update(array("q", compress(files.sizes_bytes, are_read)))
        digest.update(array("q", compress(files.mtimes_ns, are_read)))
    for path in sorted(other_files):
        digest.update(f"{os.fsencode(path)!r} {_size_and_date(path)}\n".encode())
    return digest.hexdigest()


def _files_next_to(source: Path) -> Iterator[Path]:
    """Yield the files that a scan of a single file may read, also missing ones, and the file itself."""
    yield source
    yield from (source.with_suffix(s) for s in (*_CAPTION_SUFFIXES, ".json"))
    yield from (source.with_name(f"metadata{s}") for s in METADATA_SUFFIXES)


def _size_and_date(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except (OSError, ValueError):  # deleted, or a name that is not a valid file name
        return -1, -1
    return status.st_size, status.st_mtime_ns


def inspect_image(
    path: Path, captions: Callable[[], CaptionTexts], index: ImageIndex | None, *, within: Path
) -> SourceImage | listing.SkippedEntry:
    """Return an image with its size and its captions, or why it cannot be used. Only its header is read.

    `within` is the concept's source: an image there that is a link to another place is not used.
    """
    if path.is_relative_to(within) and leads_out(path, within):
        return listing.SkippedEntry(path, LEADS_OUT)
    try:
        status = status_of(path)
        if status.size_bytes == 0:
            return listing.SkippedEntry(path, "an empty file")
        width_px, height_px, is_transparent = _header(path, status, index)
    except BrokenImageError as error:
        return listing.SkippedEntry(path, listing.NOT_READ.get(path.suffix.lower(), error.reason))
    except OSError as error:
        return listing.SkippedEntry(path, f"cannot be read ({error.strerror})")
    if reason := too_long(width_px, height_px):
        return listing.SkippedEntry(path, reason)
    texts = captions()
    return SourceImage(
        path.parent,
        path.name,
        width_px,
        height_px,
        status.size_bytes,
        status.mtime_ns,
        texts.texts,
        texts.fault,
        texts.file,
        is_transparent,
    )


def _header(path: Path, status: FileStatus, index: ImageIndex | None) -> tuple[int, int, bool]:
    """Return the width and height in px of an image, and whether it may be transparent. Raises BrokenImageError."""
    facts = {"size_bytes": status.size_bytes, "mtime_ns": status.mtime_ns}
    known = index.others.find(path, **facts) if index is not None else None
    if known is not None:
        width, height, transparent = known.split()
        return int(width), int(height), transparent == "1"
    with open_image(path) as image:
        width_px, height_px = upright_size(image)
        is_transparent = image.has_transparency_data
    if index is not None:
        index.others.keep(path, f"{width_px} {height_px} {is_transparent:d}", **facts)
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
