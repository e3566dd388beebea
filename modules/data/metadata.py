"""Captions in a metadata file: `metadata.jsonl`, `.csv` or `.parquet` next to the images, or kohya's JSON files.

Each row names an image, by its path relative to the file, and has columns of text.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from modules.data.archives import archive_of, read_bytes
from modules.data.captions.sources import decode_text, text_lines
from modules.data.links import LEADS_OUT, leads_out
from modules.data.listing import SkippedEntry, is_metadata, sample_of
from modules.data.tables import ROW_SUFFIX, TABLE_SUFFIXES, read_texts, row_name, table_facts
from modules.system.problem import quote
from modules.system.regular_files import json_object_in

METADATA_SUFFIXES = frozenset({".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet"})
CAPTION_COLUMNS = ("text", "caption", "captions", "prompt", "description")
_FILE_COLUMNS = ("file_name", "image_file_name", "filename", "file", "image", "image_path", "path")
_MAX_NAMED = 3  # problems of one file
_MAX_BYTES = 2_000_000_000  # of a file with the captions of all images
_MAX_ROW_BYTES = 10_000_000  # of the file of one image


Cells = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class MetadataProblem:
    """A problem with a metadata file; `setting` is the field of the concept that causes it, if one does."""

    reason: str
    setting: Literal["", "metadata_file", "caption_columns"] = ""


@dataclass(frozen=True, slots=True)
class Metadata:
    """The texts of a metadata file, for each column by image, and what is wrong with it.

    An image is named by its path relative to the file, with slashes; a kohya file may leave out the suffix. All columns
    have the same images.
    """

    columns: tuple[Mapping[str, tuple[str, ...]], ...] = ({},)
    problems: tuple[MetadataProblem, ...] = ()

    def cells_of(self, name: str) -> Cells | None:
        """Return the texts of an image in each column; None if the file does not name it."""
        return tuple(column[name] for column in self.columns) if name in self.columns[0] else None


@dataclass(frozen=True, slots=True)
class RowCells:
    """The texts of an image's row in each of some columns, and the folder of the file that has the row."""

    cells: Cells
    folder: Path


def read_metadata(file: Path, columns: Sequence[str]) -> Metadata:
    """Return the texts of a metadata file, from some of its columns; by default from the first that is usual.

    Nothing is raised: a file that cannot be read has no texts and one problem.
    """
    problems: list[MetadataProblem] = []
    try:
        if file.suffix.lower() in TABLE_SUFFIXES:
            return _of_table(file, columns)
        rows = read_rows(file, problems)
    except OSError as error:
        return Metadata(problems=(MetadataProblem(error.strerror or str(error), "metadata_file"),))
    return _texts_of(rows, columns, problems)


def read_rows(file: Path, problems: list[MetadataProblem]) -> list[tuple[str, dict[str, Any]]]:
    """Return the rows of a text file with metadata, each with its key in a JSON object (otherwise empty).

    What is wrong with the file is added to `problems`. Raises OSError for one that cannot be read.
    """
    text = decode_text(read_bytes(file, _MAX_BYTES))[0]
    if file.suffix.lower() == ".json":
        rows = _of_json(text, problems)
    elif file.suffix.lower() in (".csv", ".tsv"):
        rows = _of_csv(text, "\t" if file.suffix.lower() == ".tsv" else ",", problems)
    else:
        rows = _of_lines(text, problems)
    return list(rows)


class MetadataCaptions:
    """The captions of the images below a folder, from the metadata files in it. Each file is read once.

    With `file`, all captions are from that one; its images are named relative to itself, or to the folder.
    """

    def __init__(self, folder: Path, *, file: Path | None, columns: Sequence[str]) -> None:
        self.source = folder
        """The concept's folder, or its single file."""
        self._file = file
        self._columns = tuple(columns)
        self._read: dict[Path, Metadata] = {}
        self._problems: dict[Path, tuple[MetadataProblem, ...]] = {}
        self._table: Path | None = None

    def texts_of(self, image: Path) -> tuple[str, ...]:
        """Return the captions of an image; empty if no metadata file names it."""
        return _distinct(*self.cells_of(image).cells)

    def cells_of(self, image: Path) -> RowCells:
        """Return the cells of an image's row, and where they are from; none if no metadata file names it."""
        if image.suffix == ROW_SUFFIX and (archive := archive_of(image)) is not None:
            self._leave_table(archive)
            return RowCells(self._metadata(archive).cells_of(image.name) or (), archive.parent)
        for file, folder in self._files_for(image):
            metadata = self._metadata(file)
            for name in _names_of(image, folder, is_keyed=file.suffix.lower() == ".json"):
                if (cells := metadata.cells_of(name)) is not None:
                    return RowCells(cells, file.parent)
        return RowCells(self._of_own_file(image), image.parent)

    def problems(self, images: Sequence[Path]) -> list[SkippedEntry]:
        """Return the problems of the files read so far, with the images they name that are not among `images`."""
        skipped: list[SkippedEntry] = []
        there = {os.fspath(p) for p in images} | {os.fspath(p.with_suffix("")) for p in images}
        skipped += [SkippedEntry(file, p.reason, p.setting) for file, found in self._problems.items() for p in found]
        for file, metadata in self._read.items():
            has_images_inside = file.suffix.lower() in TABLE_SUFFIXES and not is_metadata(file) and file != self._file
            if has_images_inside or self.source in images:
                continue
            folders = {file.parent, self.source}
            missing = [n for n in metadata.columns[0] if not any(os.path.normpath(f / n) in there for f in folders)]
            if missing:
                others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
                skipped.append(SkippedEntry(file, f"names images that are not there: {quote(missing[0])}{others}"))
        return skipped

    def missing_columns(self) -> list[SkippedEntry]:
        """Return the files read so far that lack one of the columns."""
        all_problems = ((file, p) for file, problems in self._problems.items() for p in problems)
        return [SkippedEntry(file, p.reason, p.setting) for file, p in all_problems if p.setting == "caption_columns"]

    def _leave_table(self, table: Path) -> None:
        """Forget the texts of the last table whose rows were looked up, once another table's rows are."""
        if self._table is not None and self._table != table:
            self._read.pop(self._table, None)
        self._table = table

    def _files_for(self, image: Path) -> Iterator[tuple[Path, Path]]:
        """Yield the metadata files that may name an image, the nearest first, with the folder their names start at."""
        if self._file is not None:
            yield self._file, self._file.parent
            yield self._file, self.source
            return
        for folder in image.parents:
            for name in ("metadata.jsonl", "metadata.csv", "metadata.parquet"):
                if self._is_there(folder / name):
                    yield folder / name, folder
            if self.source in (folder, image):
                return

    def _is_there(self, file: Path) -> bool:
        return file in self._read or file.is_file()

    def _metadata(self, file: Path) -> Metadata:
        if file not in self._read:
            is_link = file != self._file and leads_out(file, self.source)
            link = Metadata(problems=(MetadataProblem(LEADS_OUT, "metadata_file"),))
            self._read[file] = link if is_link else read_metadata(file, self._columns)
            self._problems[file] = self._read[file].problems
        return self._read[file]

    def _of_own_file(self, image: Path) -> Cells:
        """Return the cells in a JSON file of the image's own name, as in shards and from some downloaders."""
        file, row = image.with_suffix(".json"), None
        if leads_out(file, self.source):
            return ()
        try:
            row = json.loads(decode_text(read_bytes(file, _MAX_ROW_BYTES))[0])
        except FileNotFoundError:
            if archive_of(image) is not None and file.stem != (sample := sample_of(image)).name:
                return self._of_own_file(sample.with_name(f"{sample.name}{image.suffix}"))  # 0001.json of 0001.b.jpg
        except (OSError, ValueError, RecursionError):
            return ()
        return _cells_of_row(row, self._columns or usual_columns(row)) if isinstance(row, dict) else ()


def _names_of(image: Path, folder: Path, *, is_keyed: bool) -> Iterator[str]:
    """Yield the names that an image may have in a metadata file; the keys of kohya's may have no suffix."""
    names = [image.relative_to(folder).as_posix()] if image.is_relative_to(folder) else []
    names.append(image.as_posix())
    yield from names
    if is_keyed:
        yield from (name.removesuffix(image.suffix) for name in names)


def _texts_of(
    rows: Sequence[tuple[str, dict[str, Any]]],
    columns: Sequence[str],
    problems: list[MetadataProblem],
    known: Sequence[str] | None = None,
) -> Metadata:
    """Return the texts of rows, each with the name of its image (empty: in a separate column).

    `known` are the columns of the file; by default the columns of the rows.
    """
    if known is None:
        known = list(dict.fromkeys(name for _, row in rows for name in row))
    file_column = next((c for c in _FILE_COLUMNS if c in known), "")
    if rows and not file_column and not rows[0][0]:
        reason = f"has no column {_FILE_COLUMNS[0]} with the names of the images; {columns_phrase(known)}"
        problems.append(MetadataProblem(reason, "metadata_file"))
        return Metadata(problems=tuple(problems))
    if not columns:
        columns = usual_columns(known)
        if rows and not columns:
            reason = f"has no column {CAPTION_COLUMNS[0]} or {CAPTION_COLUMNS[1]}; {columns_phrase(known)}"
            problems.append(MetadataProblem(reason, "caption_columns"))
    missing = [quote(c) for c in columns if rows and c not in known]
    problems += [MetadataProblem(f"has no column {c}; {columns_phrase(known)}", "caption_columns") for c in missing]
    texts: tuple[dict[str, tuple[str, ...]], ...] = tuple({} for _ in columns or [""])
    for key, row in rows:
        name = key or row.get(file_column)
        if isinstance(name, str) and name:
            path = plain_path(name)
            for of_column, cells in zip(texts, _cells_of_row(row, columns) or [()], strict=True):
                of_column[path] = cells
    return Metadata(texts, tuple(problems))


def _of_table(file: Path, columns: Sequence[str]) -> Metadata:
    """Return the texts of a table: by its rows if its images are inside, otherwise by a column of names.

    Raises OSError.
    """
    facts = table_facts(file)
    known = [c for c in facts.columns if c != facts.image_column]
    wanted = [c for c in known if c in (*_FILE_COLUMNS, *(columns or CAPTION_COLUMNS))]
    rows = read_texts(file, wanted) if wanted else [{} for _ in range(facts.num_rows)]
    names = [row_name(i) if facts.image_column else "" for i in range(len(rows))]
    return _texts_of(list(zip(names, rows, strict=True)), columns, [], known)


def _of_lines(text: str, problems: list[MetadataProblem]) -> Iterator[tuple[str, dict[str, Any]]]:
    bad = []
    for number, line in enumerate(text_lines(text), start=1):
        if not line.strip():
            continue
        if (row := json_object_in(line)) is not None:
            yield "", row
        else:
            bad.append(number)
    if bad:
        problems.append(MetadataProblem(f"{_lines_of(bad)}: not a JSON object"))


def _lines_of(numbers: Sequence[int]) -> str:
    named = ", ".join(map(str, numbers[:_MAX_NAMED])) + (" and others" if len(numbers) > _MAX_NAMED else "")
    return f"{'line' if len(numbers) == 1 else 'lines'} {named}"


def _of_json(text: str, problems: list[MetadataProblem]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a JSON file: a list of objects, or kohya's object with one for each image."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        problems.append(MetadataProblem(f"not valid JSON ({error})", "metadata_file"))
        return
    if isinstance(content, list):
        yield from (("", row) for row in content if isinstance(row, dict))
    elif isinstance(content, dict):
        for name, row in content.items():
            if isinstance(row, dict):
                yield name, _join(row)
            elif isinstance(row, str):
                yield name, {"caption": row}
    else:
        reason = "neither a list nor an object with one entry for each image"
        problems.append(MetadataProblem(reason, "metadata_file"))


def _join(row: dict[str, Any]) -> dict[str, Any]:
    """Return kohya's caption with its tags behind it, as it is trained there."""
    caption, tags = (row.get(k) if isinstance(row.get(k), str) else "" for k in ("caption", "tags"))
    return {**row, "caption": ", ".join(t for t in (caption, tags) if t)}


def _of_csv(text: str, delimiter: str, problems: list[MetadataProblem]) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    too_long = []
    try:
        for row in reader:
            if row.pop(None, None) is not None:  # where DictReader puts further cells
                too_long.append(reader.line_num)
            yield "", row
    except csv.Error as error:
        problems.append(MetadataProblem(f"not a readable table ({error})"))
    if too_long:
        reason = (
            f"{_lines_of(too_long)}: more cells than columns, and the text of the further ones is lost; put a text "
            'with commas in "quotes"'
        )
        problems.append(MetadataProblem(reason))


def texts_of_row(row: Mapping[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    """Return the texts in some columns of a row; a list has several. Line breaks within a text become spaces."""
    values = [row.get(column) for column in columns]
    cells = [cell for one in values for cell in (one if isinstance(one, list) else [one])]
    texts = (" ".join(str(c).split()) for c in cells if isinstance(c, str | int | float) and not isinstance(c, bool))
    return tuple(dict.fromkeys(t for t in texts if t))


def _cells_of_row(row: Mapping[str, Any], columns: Sequence[str]) -> Cells:
    """Return the texts of a row in each of some columns."""
    return tuple(texts_of_row(row, (column,)) for column in columns)


def _distinct(*cells: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts of several cells, equal ones once."""
    return cells[0] if len(cells) == 1 else tuple(dict.fromkeys(chain.from_iterable(cells)))


def usual_columns(columns: Collection[str]) -> tuple[str, ...]:
    """Return the first usual column of captions among the columns of a file; empty without one."""
    return next(((c,) for c in CAPTION_COLUMNS if c in columns), ())


def columns_phrase(columns: Collection[str]) -> str:
    """Return the columns of a file as part of a sentence."""
    return f"its columns are {', '.join(quote(c) for c in list(columns)[:20])}" if columns else "it has no columns"


def plain_path(name: str) -> str:
    """Return the path of an image without "./" and backslashes."""
    return os.path.normpath(name.replace("\\", "/")).replace(os.sep, "/")
