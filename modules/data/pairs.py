"""The files of preference pairs: a chosen and a rejected image for one caption. No image is opened.

A source of pairs is a folder with the subfolders `chosen` and `rejected`, whose images are matched by name; or
metadata (.jsonl, .csv) or a table (.parquet, .arrow) with the columns `chosen` and `rejected`, or Pick-a-Pic's
(Kirstain et al. 2023): two images, and labels of the preferred one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from modules.data import scan
from modules.data.cache.image_index import ImageIndex
from modules.data.captions.sources import CaptionOrigin, CaptionTexts
from modules.data.folder_scan import WATCHED_EVERY
from modules.data.listing import SkippedEntry, is_metadata, list_images, walk, without_unnamed_arrow_files
from modules.data.metadata import (
    METADATA_SUFFIXES,
    MetadataCaptions,
    MetadataProblem,
    columns_phrase,
    plain_path,
    read_rows,
    texts_of_row,
    usual_columns,
)
from modules.data.source_image import SourceImage
from modules.data.tables import ROW_SUFFIX, SPLITS_FILE, TABLE_SUFFIXES, read_texts, row_name, split_names, table_facts

CHOSEN_FOLDER, REJECTED_FOLDER = "chosen", "rejected"
PAIR_SUFFIXES = METADATA_SUFFIXES | TABLE_SUFFIXES
_NAMED = (("chosen", "rejected"), ("chosen_image", "rejected_image"), ("image_chosen", "image_rejected"))
_NUMBERED = (("jpg_0", "jpg_1"), ("image_0", "image_1"))
_LABELS = ("label_0", "label_1")
_FLAGS = ("has_label", "are_different")


@dataclass(frozen=True, slots=True)
class PairFiles:
    """The files of a pair, which may lead into an archive. `captions` are its row's; None if the row has none."""

    chosen: Path
    rejected: Path
    captions: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class PairListing:
    """The pairs of a source, and the files and the rows of tables that are left out."""

    pairs: tuple[PairFiles, ...]
    skipped: tuple[SkippedEntry, ...]


def list_pairs(source: Path, *, caption_columns: Sequence[str] = ()) -> PairListing:
    """Return the pairs of a source: a folder, or a metadata file. Raises OSError for one that cannot be listed.

    `caption_columns` are the columns with the captions in metadata; none are the usual ones.
    """
    if source.is_file():
        if source.suffix.lower() in PAIR_SUFFIXES:
            return _of_tables([source], caption_columns, [])
        reason = "not a folder of pairs, and not a .jsonl, .csv, .parquet or .arrow file"
        return PairListing((), (SkippedEntry(source, reason),))
    sides = [source / name for name in (CHOSEN_FOLDER, REJECTED_FOLDER)]
    there = [folder for folder in sides if folder.is_dir()]
    if len(there) == 2:
        return _of_folders(*sides, within=source)
    if splits := split_names(source):
        reason = f"a data set with the splits {', '.join(splits)}: choose the folder of one"
        return PairListing((), (SkippedEntry(source / SPLITS_FILE, reason),))
    skipped: list[SkippedEntry] = []
    if tables := _tables_in(source, skipped):
        return _of_tables(tables, caption_columns, skipped)
    if there:
        [missing] = {*sides} - {*there}
        return PairListing((), (SkippedEntry(there[0], f"there is no folder {missing.name} next to it"),))
    return PairListing((), tuple(skipped))


def files_outside(source: Path) -> Iterator[Path]:
    """Yield the images of pairs in metadata that are not below the source. Raises OSError."""
    for pair in list_pairs(source).pairs:
        for path in (pair.chosen, pair.rejected):
            if path.suffix != ROW_SUFFIX and not path.is_relative_to(source):
                yield path


def _of_folders(chosen: Path, rejected: Path, *, within: Path) -> PairListing:
    """Return the pairs of images of the same name in two folders and their subfolders.

    If there is no image of exactly the same name, one with another extension is taken.
    """
    listed = [list_images(folder, include_subfolders=True, within=within) for folder in (chosen, rejected)]
    names = [
        {path.relative_to(folder): path for path in listing.images}
        for folder, listing in zip((chosen, rejected), listed, strict=True)
    ]
    pairs = {name: (path, names[1].pop(name)) for name, path in names[0].items() if name in names[1]}
    by_stem: dict[Path, list[Path]] = {}
    for name in names[1]:
        by_stem.setdefault(name.with_suffix(""), []).append(name)
    for name, path in names[0].items():
        if name not in pairs and (candidates := by_stem.get(name.with_suffix(""))):
            pairs[name] = path, names[1].pop(candidates.pop(0))
    skipped = [s for listing in listed for s in listing.skipped]
    skipped += [
        SkippedEntry(p, f"no image of this name in {rejected.name}/") for n, p in names[0].items() if n not in pairs
    ]
    skipped += [SkippedEntry(p, f"no image of this name in {chosen.name}/") for p in names[1].values()]
    return PairListing(tuple(PairFiles(*pairs[name]) for name in sorted(pairs)), tuple(skipped))


def _tables_in(folder: Path, skipped: list[SkippedEntry]) -> list[Path]:
    """Return the metadata of a folder: its metadata file, or else all tables in it and its subfolders.

    What is wrong with a data set that `datasets` saved is added to `skipped`, and links out of the folder.
    """
    files = sorted(walk(folder, include_subfolders=True, skipped=skipped))
    metadata_files = [p for p in files if is_metadata(p)]
    tables = [p for p in files if p.suffix.lower() in TABLE_SUFFIXES and not p.name.startswith(".")]
    return metadata_files or list(without_unnamed_arrow_files(tables, skipped))


@dataclass
class _Rows:
    """The pairs in the rows of a file, and the numbers of rows that are left out."""

    file: Path
    pairs: list[PairFiles] = field(default_factory=list)
    problems: list[MetadataProblem] = field(default_factory=list)
    num_ties: int = 0
    num_without_label: int = 0
    num_incomplete: int = 0
    num_same: int = 0

    def skipped_entries(self) -> Iterator[SkippedEntry]:
        """Yield the entries that are left out of the file, with the reason."""
        yield from (SkippedEntry(self.file, problem.reason) for problem in self.problems)
        for number, reason, is_normal in (
            (self.num_ties, "no image is preferred (ties)", True),
            (self.num_without_label, "no label", True),
            (self.num_incomplete, "two images are not named", False),
            (self.num_same, "the chosen and the rejected image are the same file", False),
        ):
            if number:
                left_out = "1 pair is left out" if number == 1 else f"{number:,} pairs are left out"
                yield SkippedEntry(self.file, f"{left_out}: {reason}", is_part=True, is_normal=is_normal)


def _of_tables(files: Iterable[Path], caption_columns: Sequence[str], skipped: Sequence[SkippedEntry]) -> PairListing:
    """Return the pairs of metadata files and tables, and what is left out of them besides `skipped`."""
    pairs: list[PairFiles] = []
    left_out = list(skipped)
    for file in files:
        parsed = _Rows(file)
        try:
            _read_pairs(parsed, caption_columns)
        except OSError as error:
            parsed.problems.append(MetadataProblem(error.strerror or str(error)))
        pairs += parsed.pairs
        left_out += parsed.skipped_entries()
    return PairListing(tuple(pairs), tuple(left_out))


def _read_pairs(parsed: _Rows, caption_columns: Sequence[str]) -> None:
    """Add the pairs of a metadata file to `parsed`. Raises OSError for one that cannot be read."""
    file = parsed.file
    images: tuple[str, ...] = ()
    if file.suffix.lower() in TABLE_SUFFIXES:
        facts = table_facts(file)
        known, images = facts.columns, facts.image_columns
        wanted = {*sum(_NAMED + _NUMBERED, ()), *_LABELS, *_FLAGS, *(caption_columns or usual_columns(known))}
        columns = [c for c in known if c in wanted and c not in images]
        rows = read_texts(file, columns) if columns else [{} for _ in range(facts.num_rows)]
    else:
        rows = [row for _, row in read_rows(file, parsed.problems)]
        known = tuple(dict.fromkeys(name for row in rows for name in row))
    sides = next((pair for pair in _NAMED + _NUMBERED if set(pair) <= set(known)), None)
    if sides is None or (sides in _NUMBERED and not set(_LABELS) & set(known)):
        if rows:
            expected = "has neither the columns chosen and rejected nor Pick-a-Pic's (jpg_0, jpg_1, label_0)"
            parsed.problems.append(MetadataProblem(f"{expected}; {columns_phrase(known)}"))
        return
    texts = caption_columns or usual_columns(known)
    for number, row in enumerate(rows):
        first, second = (_image(file, number, row, side, is_inside=side in images) for side in sides)
        order = (first, second) if sides in _NAMED else _order_sides(parsed, row, first, second)
        if order is not None:
            _add(parsed, *order, texts_of_row(row, texts) or None)


def _add(parsed: _Rows, chosen: Path | None, rejected: Path | None, captions: tuple[str, ...] | None) -> None:
    if chosen is None or rejected is None:
        parsed.num_incomplete += 1
    elif chosen == rejected:
        parsed.num_same += 1
    else:
        parsed.pairs.append(PairFiles(chosen, rejected, captions))


def _image(file: Path, number: int, row: Mapping[str, Any], column: str, *, is_inside: bool) -> Path | None:
    """Return the image in a cell: inside the file, or named relative to it. None for a cell without one."""
    if is_inside:
        return file / row_name(number, column)
    name = row.get(column)
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        return None
    return Path(os.path.normpath(file.parent / plain_path(name.strip())))


def _order_sides(
    parsed: _Rows, row: Mapping[str, Any], first: Path | None, second: Path | None
) -> tuple[Path | None, Path | None] | None:
    """Return the chosen and the rejected image of a row with labels; None for a tie, or without a label.

    The labels are 1 and 0, or 0.5 and 0.5 for a tie.
    """
    has_label, are_different = (_truth(row.get(flag)) for flag in _FLAGS)
    labels = [_number(row.get(label)) for label in _LABELS]
    preference = labels[0] if labels[0] is not None else None if labels[1] is None else 1.0 - labels[1]
    if has_label is False or preference is None:
        parsed.num_without_label += 1
        return None
    if preference == 0.5 or labels[0] == labels[1] or are_different is False:
        parsed.num_ties += 1
        return None
    return (first, second) if preference > 0.5 else (second, first)


def _number(cell: object) -> float | None:
    try:
        value = float(cell) if isinstance(cell, str | int | float) else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _truth(cell: object) -> bool | None:
    if isinstance(cell, str):
        return {"true": True, "1": True, "false": False, "0": False}.get(cell.strip().lower())
    return bool(cell) if isinstance(cell, bool | int) else None


# Scanning pairs of images, and the scan of any concept. Only headers are read.
_SHARED = ("one_file", "fixed_text")


def scan_source(
    source: Path,
    *,
    include_subfolders: bool,
    captions: CaptionOrigin,
    holds_pairs: bool = False,
    index: ImageIndex | None = None,
    watch: scan.Watch = scan.ignore_progress,
    check: Callable[[], None] = scan.never_stop,
) -> scan.Scan:
    """Return the contents of a concept's source: its images, or its pairs. The arguments are as in `scan_folder`."""
    if holds_pairs:
        return scan_pairs(source, captions=captions, index=index, watch=watch)
    return scan.scan_folder(
        source, include_subfolders=include_subfolders, captions=captions, index=index, watch=watch, check=check
    )


def scan_pairs(
    source: Path, *, captions: CaptionOrigin, index: ImageIndex | None = None, watch: scan.Watch = scan.ignore_progress
) -> scan.Scan:
    """Return the chosen images of a source, each with its rejected one.

    The caption of a pair is its row's, otherwise its chosen image's. A pair of which an image cannot be
    used is left out. Raises OSError for an unreadable source.
    """
    listing = list_pairs(source, caption_columns=captions.columns)
    metadata = MetadataCaptions(source, file=captions.file, columns=captions.columns)
    images: list[SourceImage] = []
    skipped = list(listing.skipped)
    for number, pair in enumerate(listing.pairs):
        if number % WATCHED_EVERY == 0:
            watch(number, len(listing.pairs))
        chosen = scan.inspect_image(pair.chosen, partial(_captions, pair, captions, metadata), index, within=source)
        rejected = scan.inspect_image(pair.rejected, _no_captions, index, within=source)
        for side in (chosen, rejected):
            if isinstance(side, SkippedEntry):
                skipped.append(SkippedEntry(side.path, f"{side.reason}; its pair is left out"))
        if isinstance(chosen, SourceImage) and isinstance(rejected, SourceImage):
            images.append(replace(chosen, rejected=rejected))
    skipped += metadata.problems([path for pair in listing.pairs for path in (pair.chosen, pair.rejected)])
    return scan.Scan(tuple(images), tuple(sorted(skipped, key=lambda s: s.path)))


def fingerprint_of_source(
    source: Path,
    *,
    include_subfolders: bool,
    holds_pairs: bool,
    other_files: tuple[Path, ...] = (),
    check: Callable[[], None] = scan.never_stop,
) -> str:
    """Return a hash of the paths, sizes and dates of the files that `scan_source` reads, and of `other_files`.

    `check` is called for each folder, and may raise to stop. Raises OSError for an unreadable source.
    """
    outside: Iterator[Path] = files_outside(source) if holds_pairs else iter(())
    return scan.fingerprint_of_folder(
        source, include_subfolders=include_subfolders or holds_pairs, other_files=(*other_files, *outside), check=check
    )


def _captions(pair: PairFiles, origin: CaptionOrigin, metadata: MetadataCaptions) -> CaptionTexts:
    """Return the captions of a pair, from the concept, its row, or its chosen image."""
    if pair.captions is not None and origin.source not in _SHARED:
        return CaptionTexts(pair.captions)
    return scan.captions_of(pair.chosen, origin, metadata)


def _no_captions() -> CaptionTexts:
    return CaptionTexts(())
