"""Scanning the image files of a folder: only new and changed files are opened, by several threads."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from modules.data.cache.image_index import ImageIndex, Row
from modules.data.captions import sources
from modules.data.folder_files import FolderFiles, stem_of, suffix_of
from modules.data.images import BrokenImageError, open_image, upright_size
from modules.data.inputs import companion_suffixes
from modules.data.listing import NOT_READ, SkippedEntry, is_left_out, sample_name
from modules.data.source_image import SourceImage, too_long

WATCHED_EVERY = 100  # images
_THREADS = 8  # they wait for the disk or the network
_MAX_CHARACTERS = 100_000  # of a caption file that is kept in the index
_UNKNOWN: Row = ("", -1, -1, "")
_Header = tuple[int, int, bool]
"""The width and height in px of an image, and whether it may be transparent."""


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Some files of one folder, and the places of the images among them.

    `of_samples`: they are the fields of samples in a shard, where the caption of 0001.large.jpg may be 0001.txt.
    """

    files: FolderFiles
    images: array[int]
    of_samples: bool = False


@dataclass(frozen=True, slots=True)
class _Read:
    """The facts about an image that was not known and its caption, or why it cannot be used."""

    header: _Header | str | None = None
    caption: tuple[sources.CaptionFault, str] | None = None


class _UnreadImage(NamedTuple):
    """The places of an image and its caption, of which at least one must be read; -1 for a known caption."""

    image: int
    is_new: bool
    caption: int


@dataclass(frozen=True, slots=True)
class _KnownFacts:
    """The known facts of images by their places: their headers, or why they cannot be used, and their captions.

    `of_samples` are the files of captions that are named after samples instead of images.
    """

    headers: dict[int, _Header | str] = field(default_factory=dict)
    texts: dict[int, tuple[sources.CaptionFault, str]] = field(default_factory=dict)
    of_samples: dict[int, Path] = field(default_factory=dict)
    unknown: dict[int, _UnreadImage] = field(default_factory=dict)


def images_among(files: FolderFiles, suffixes: frozenset[str], skipped: list[SkippedEntry]) -> ImageFiles:
    """Return which files are images, without companions of other images; `skipped` gets hidden and unreadable ones.

    A raw photo or a video next to an image of the same name is not reported: cameras and phones write both.
    """
    places, unread, companions = array("q"), list[str](), companion_suffixes()
    for place, suffix in enumerate(files.suffixes):
        if suffix in suffixes and not is_left_out(files.folder, files.names[place], companions, skipped):
            places.append(place)
        elif suffix in NOT_READ:
            unread.append(files.names[place])
    stems = {stem_of(files.names[place]) for place in places} if unread else set()
    for name in (name for name in unread if stem_of(name) not in stems):
        reason = NOT_READ[suffix_of(name).lower()]
        skipped.append(SkippedEntry(files.folder / name, reason))
    return ImageFiles(files, places)


@dataclass(eq=False)
class FolderScan:
    """The scan of the image files of one source. `captions` returns the captions of an image without a caption file."""

    origin: sources.CaptionOrigin
    source: Path
    captions: Callable[[Path], sources.CaptionTexts]
    index: ImageIndex | None
    skipped: list[SkippedEntry]
    _headers: dict[str, _Header] = field(default_factory=dict)

    def images(
        self, parts: Iterable[ImageFiles], num_images: int, watch: Callable[[int, int], None]
    ) -> Iterator[SourceImage]:
        """Yield the images that can be used; the others are added to `skipped`. `num_images` are in all `parts`."""
        done = 0
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="darkroom-scan") as pool:
            for part in parts:
                known = self._look_up(part)
                for first in range(0, len(part.images), WATCHED_EVERY):
                    watch(done + first, num_images)
                    yield from self._usable(part.files, part.images[first : first + WATCHED_EVERY], known, pool)
                done += len(part.images)

    def _usable(
        self, files: FolderFiles, images: Sequence[int], known: _KnownFacts, pool: ThreadPoolExecutor
    ) -> Iterator[SourceImage]:
        """Yield the images at some places that can be used; what is not known of them is read."""
        if unknown := [known.unknown[place] for place in images if place in known.unknown]:
            self._read(unknown, known, files, pool)
        for place in images:
            name, header = files.names[place], known.headers[place]
            reason = header if isinstance(header, str) else too_long(header[0], header[1])
            if isinstance(header, str) or reason:
                self.skipped.append(SkippedEntry(files.folder / name, reason))
                continue
            captions: tuple[tuple[str, ...], sources.CaptionFault, Path | str | None]
            if (read := known.texts.get(place)) is not None:
                captions = (*sources.captions_of_text(*read), known.of_samples.get(place, self.origin.extension))
            else:
                others = self.captions(files.folder / name)
                captions = others.texts, others.fault, others.file
            size_bytes, mtime_ns = files.sizes_bytes[place], files.mtimes_ns[place]
            texts, fault, caption_from = captions
            yield SourceImage(
                files.folder,
                name,
                header[0],
                header[1],
                size_bytes,
                mtime_ns,
                texts,
                fault,
                caption_from,
                is_transparent=header[2],
            )

    def _look_up(self, part: ImageFiles) -> _KnownFacts:
        """Return the entries of the index for the images and their captions, and the files that must be read."""
        names, sizes, mtimes = part.files.names, part.files.sizes_bytes, part.files.mtimes_ns
        rows = self.index.rows(part.files.folder, names) if self.index is not None else {}
        has_text_files = self.origin.source == "text_file"
        place_of = {name: place for place, name in enumerate(names)} if has_text_files else {}
        known = _KnownFacts()

        for place in part.images:
            row = rows.get(names[place], _UNKNOWN)
            header = row[3] if row[1] == sizes[place] and row[2] == mtimes[place] and row[1] >= 0 else None
            text, caption = None, -1
            if has_text_files:
                caption = self._caption_place(place, part, place_of, known)
            if caption >= 0:
                row = rows.get(names[caption], _UNKNOWN)
                text = row[3] if row[1] == sizes[caption] and row[2] == mtimes[caption] and row[1] >= 0 else None
            if header is not None:
                known.headers[place] = self._header(header)
            if text is not None:
                fault, _, content = text.partition("\n")
                known.texts[place] = cast(sources.CaptionFault, fault), content
            if header is None or (caption >= 0 and text is None):
                known.unknown[place] = _UnreadImage(place, header is None, caption if text is None else -1)
        return known

    def _caption_place(self, image: int, part: ImageFiles, place_of: dict[str, int], known: _KnownFacts) -> int:
        """Return the place of an image's caption, or -1 without one."""
        name = part.files.names[image]
        caption = place_of.get(stem_of(name) + self.origin.extension, -1)
        if caption < 0 and part.of_samples:
            caption = place_of.get(sample_name(name) + self.origin.extension, -1)
            if caption >= 0:
                known.of_samples[image] = part.files.folder / part.files.names[caption]
        return caption

    def _read(
        self, unknown: Sequence[_UnreadImage], known: _KnownFacts, files: FolderFiles, pool: ThreadPoolExecutor
    ) -> None:
        """Read the headers and captions of new and changed files, and add them to the index."""
        names, sizes, mtimes = files.names, files.sizes_bytes, files.mtimes_ns

        def read(item: _UnreadImage) -> _Read:
            return _Read(
                _read_header(files.folder / names[item.image], sizes[item.image]) if item.is_new else None,
                _read_caption(files.folder / names[item.caption]) if item.caption >= 0 else None,
            )

        fresh: list[Row] = []
        for (image, _, caption), new in zip(unknown, pool.map(read, unknown), strict=True):
            if new.header is not None:
                known.headers[image] = new.header
            if isinstance(new.header, tuple):
                width_px, height_px, is_transparent = new.header
                fresh.append((names[image], sizes[image], mtimes[image], f"{width_px} {height_px} {is_transparent:d}"))
            if new.caption is not None:
                known.texts[image] = new.caption
                if len(new.caption[1]) <= _MAX_CHARACTERS:
                    fresh.append((names[caption], sizes[caption], mtimes[caption], "\n".join(new.caption)))
        if self.index is not None and fresh:
            self.index.keep(files.folder, fresh)

    def _header(self, facts: str) -> _Header:
        header = self._headers.get(facts)
        if header is None:
            width, height, transparent = facts.split()
            header = self._headers[facts] = int(width), int(height), transparent == "1"
        return header


def _read_header(path: Path, size_bytes: int) -> _Header | str:
    """Return the header of an image, or why it cannot be used."""
    if size_bytes == 0:
        return "an empty file"
    try:
        with open_image(path) as image:
            return *upright_size(image), image.has_transparency_data
    except BrokenImageError as error:
        return error.reason
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _read_caption(path: Path) -> tuple[sources.CaptionFault, str] | None:
    try:
        text, fault = sources.read_text(path)
    except (OSError, ValueError):
        return None
    return fault, text


def shared_captions(origin: sources.CaptionOrigin, source: Path) -> sources.CaptionTexts | None:
    """Return the captions that all images of a source have; None where each has its own."""
    return sources.read_captions(source, origin, within=source) if origin.source in ("one_file", "fixed_text") else None
