"""Scanning pairs of images, and the scan of any concept. Only headers are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from modules.data.cache.stat_index import StatIndex
from modules.data.captions.sources import CaptionOrigin, CaptionTexts
from modules.data.listing import Skipped
from modules.data.metadata import MetadataCaptions
from modules.data.pairs import PairFiles, files_outside, list_pairs
from modules.data.scan import (
    WATCHED_EVERY,
    Scan,
    SourceImage,
    Watch,
    captions_of,
    fingerprint_of_folder,
    look_at,
    scan_folder,
    unwatched,
)

_SHARED = ("one_file", "fixed_text")


def scan_source(
    source: Path,
    *,
    include_subfolders: bool,
    captions: CaptionOrigin,
    holds_pairs: bool = False,
    index: StatIndex | None = None,
    watch: Watch = unwatched,
) -> Scan:
    """Return the contents of a concept's source: its images, or its pairs. The arguments are those of `scan_folder`."""
    if holds_pairs:
        return scan_pairs(source, captions=captions, index=index, watch=watch)
    return scan_folder(source, include_subfolders=include_subfolders, captions=captions, index=index, watch=watch)


def scan_pairs(
    source: Path, *, captions: CaptionOrigin, index: StatIndex | None = None, watch: Watch = unwatched
) -> Scan:
    """Return the chosen images of a source, each with its rejected one.

    The caption of a pair is that of its row, otherwise that of its chosen image. A pair of which an image cannot be
    used is left out. Raises OSError for an unreadable source.
    """
    listing = list_pairs(source, caption_columns=captions.columns)
    metadata = MetadataCaptions(source, file=captions.file, columns=captions.columns)
    images: list[SourceImage] = []
    skipped = list(listing.skipped)
    for number, pair in enumerate(listing.pairs):
        if number % WATCHED_EVERY == 0:
            watch(number, len(listing.pairs))
        chosen = look_at(pair.chosen, partial(_captions, pair, captions, metadata), index, within=source)
        rejected = look_at(pair.rejected, _no_captions, index, within=source)
        for found in (chosen, rejected):
            if isinstance(found, Skipped):
                skipped.append(Skipped(found.path, f"{found.reason}; its pair is left out"))
        if isinstance(chosen, SourceImage) and isinstance(rejected, SourceImage):
            images.append(replace(chosen, rejected=rejected))
    skipped += metadata.problems([path for pair in listing.pairs for path in (pair.chosen, pair.rejected)])
    return Scan(tuple(images), tuple(sorted(skipped, key=lambda s: s.path)))


def fingerprint_of_source(
    source: Path, *, include_subfolders: bool, holds_pairs: bool, other_files: tuple[Path, ...] = ()
) -> str:
    """Return a hash of the paths, sizes and dates of the files that `scan_source` reads, and of `other_files`.

    Raises OSError for an unreadable source.
    """
    outside: Iterator[Path] = files_outside(source) if holds_pairs else iter(())
    return fingerprint_of_folder(
        source, include_subfolders=include_subfolders or holds_pairs, other_files=(*other_files, *outside)
    )


def _captions(pair: PairFiles, origin: CaptionOrigin, metadata: MetadataCaptions) -> CaptionTexts:
    """Return the captions of a pair: those of the concept, of its row, or of its chosen image."""
    if pair.captions is not None and origin.source not in _SHARED:
        return CaptionTexts(pair.captions)
    return captions_of(pair.chosen, origin, metadata)


def _no_captions() -> CaptionTexts:
    return CaptionTexts(())
