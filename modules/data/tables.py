"""Parquet and Arrow files: images in their rows, as data sets on the Hugging Face hub have them, and columns of text.

They need the package pyarrow, which is imported only when such a file is read. No code of a file is run.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from modules.system.file_errors import plain_reason
from modules.system.regular_files import read_json_object

# Folders of data sets that the package `datasets` saved (`save_to_disk`): which of their files hold the rows.
#
# A data set has data-*.arrow files, and state.json names them; next to them may lie files that `map` and `filter`
# cached. A folder with several splits has dataset_dict.json and a folder for each. Only names are read.

STATE_FILE, SPLITS_FILE = "state.json", "dataset_dict.json"
_MAX_BYTES = 10_000_000
ROW_SUFFIX = ".row"
_BYTES = "bytes"
_lock = threading.Lock()  # reading one group of rows twice, on two threads, would take its memory twice
ARROW_SUFFIX = ".arrow"
TABLE_SUFFIXES = frozenset({".parquet", ARROW_SUFFIX})
_RANDOM_ACCESS = b"ARROW1"  # the first bytes of the Arrow file format; the stream format has none


def data_files(folder: Path) -> tuple[str, ...]:
    """Return the names of the files with a data set's rows; empty for any other folder."""
    files = (read_json_object(folder / STATE_FILE, _MAX_BYTES) or {}).get("_data_files")
    names = [f.get("filename") for f in files if isinstance(f, dict)] if isinstance(files, list) else []
    return tuple(n for n in names if isinstance(n, str))


def split_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the splits, which are subfolders of a data set; empty for any other folder."""
    splits = (read_json_object(folder / SPLITS_FILE, _MAX_BYTES) or {}).get("splits")
    return tuple(s for s in splits if isinstance(s, str)) if isinstance(splits, list) else ()


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The columns of a file with a table, the ones that hold images, and its number of rows.

    The columns that `datasets` marked as images come before others that hold encoded images.
    """

    columns: tuple[str, ...]
    image_columns: tuple[str, ...]
    num_rows: int

    @property
    def image_column(self) -> str:
        """The first column that holds images; empty if none does."""
        return self.image_columns[0] if self.image_columns else ""


def row_name(row: int, column: str = "") -> str:
    """Return the name of a row's image, as the last part of its path; by default of the first column of images."""
    return f"{row:08d}{'.' if column else ''}{column}{ROW_SUFFIX}"


def row_and_column(name: str) -> tuple[int, str]:
    """Return the row and the column that `row_name` has named; an empty column is the first one of images.

    Raises ValueError for any other name.
    """
    row, _, column = name.removesuffix(ROW_SUFFIX).partition(".")
    return int(row), column


def table_facts(file: Path) -> TableFacts:
    """Return the facts about a file; no image is read. Raises OSError."""
    with open_table(file) as table:
        return TableFacts(tuple(table.schema.names), _image_columns(table.schema), sum(table.group_sizes()))


def read_row_image(file: Path, row: int, column: str = "") -> bytes:
    """Return the content of the image in a row, by default of the first column of images.

    Raises OSError, also for a row that has none.

    The last few groups of rows stay in memory: rows that are near each other are read together.
    """
    status = file.stat()
    version = (os.fspath(file), status.st_size, status.st_mtime_ns)
    with _lock:
        starts = _group_starts(*version)
        group = max((i for i, start in enumerate(starts) if start <= row), default=-1)
        cells = _group(*version, group, column) if group >= 0 else ()
    content = _image_of(cells[row - starts[group]].as_py()) if group >= 0 and row - starts[group] < len(cells) else b""
    if not content:
        raise FileNotFoundError(errno.ENOENT, f"row {row} of {file.name} has no image", str(file))
    return content


def read_texts(file: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a file with only some of their columns. Raises OSError."""
    with open_table(file) as table:
        return table.rows(columns)


def _image_columns(schema: Any) -> tuple[str, ...]:
    """Return the columns that hold encoded images, first the ones that `datasets` marked as images."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        marked = [n for n in schema.names if features.get(n, {}).get("_type") == "Image"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        marked = []
    likely = [field.name for field in schema if _holds_images(field)]
    return tuple(sorted(likely, key=lambda name: name not in marked))


def _holds_images(field: Any) -> bool:
    """Return whether a column holds encoded images: plain bytes, or bytes with a path."""
    kind = str(field.type)
    return kind in ("binary", "large_binary") or (kind.startswith("struct<") and f"{_BYTES}: " in kind)


def _image_of(cell: Any) -> bytes:
    content = cell.get(_BYTES) if isinstance(cell, dict) else cell
    return content if isinstance(content, bytes) else b""


@lru_cache(maxsize=256)
def _group_starts(file: str, size_bytes: int, mtime_ns: int) -> tuple[int, ...]:
    """Return the first row of each group of rows. The arguments after the path identify the version of the file."""
    with open_table(Path(file)) as table:
        counts = table.group_sizes()
    return tuple(accumulate(counts, initial=0))[:-1]


@lru_cache(maxsize=4)
def _group(file: str, size_bytes: int, mtime_ns: int, group: int, column: str) -> Any:
    with open_table(Path(file)) as table:
        return table.column(group, column or next(iter(_image_columns(table.schema)), ""))


class TableFile(Protocol):
    """An open file with a table, whose rows are stored in groups."""

    @property
    def schema(self) -> Any:
        """The names and types of its columns, as pyarrow's `Schema`."""
        ...

    def group_sizes(self) -> list[int]:
        """Return the number of rows of each group."""
        ...

    def column(self, group: int, name: str) -> Any:
        """Return a column of a group of rows, as pyarrow's `Array`."""
        ...

    def rows(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return all rows with only some of their columns."""
        ...


class ParquetTable:
    """A Parquet file; only what is asked for is read."""

    def __init__(self, table: Any) -> None:
        self._table = table

    @property
    def schema(self) -> Any:
        """Its columns; they are at the end of the file."""
        return self._table.schema_arrow

    def group_sizes(self) -> list[int]:
        """Return the number of rows of each row group."""
        metadata = self._table.metadata
        return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    def column(self, group: int, name: str) -> Any:
        """Return a column of a row group."""
        return self._table.read_row_group(group, columns=[name]).column(0).combine_chunks()

    def rows(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return all rows with only some of their columns."""
        rows: list[dict[str, Any]] = self._table.read(columns=list(columns)).to_pylist()
        return rows


class ArrowTable:
    """A memory-mapped Arrow file, of the stream format (as `datasets` saves them) or the file format.

    Its groups are the record batches; a stream's are skipped without being read. Columns are validated
    before use: a damaged file could otherwise point outside of its bytes.
    """

    def __init__(self, source: Any, ipc: Any) -> None:
        self._source, self._ipc = source, ipc
        self._has_index = source.read(len(_RANDOM_ACCESS)) == _RANDOM_ACCESS
        self.schema = self._reader().schema

    def group_sizes(self) -> list[int]:
        """Return the number of rows of each record batch."""
        return [batch.num_rows for batch in self._batches()]

    def column(self, group: int, name: str) -> Any:
        """Return a column of a record batch; its memory belongs to the mapped file."""
        if self._has_index:
            batch = self._reader().get_batch(group)
        else:
            batch = next(b for i, b in enumerate(self._batches()) if i == group)
        column = batch.column(name)
        column.validate(full=True)
        return column

    def rows(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return all rows with only some of their columns."""
        rows: list[dict[str, Any]] = []
        for batch in self._batches():
            chosen = batch.select(list(columns))
            chosen.validate(full=True)
            rows += chosen.to_pylist()
        return rows

    def _reader(self) -> Any:
        self._source.seek(0)
        return self._ipc.open_file(self._source) if self._has_index else self._ipc.open_stream(self._source)

    def _batches(self) -> Iterator[Any]:
        reader = self._reader()
        if self._has_index:
            yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
        else:
            yield from reader


@contextmanager
def open_table(file: Path) -> Iterator[TableFile]:
    """Open a Parquet or Arrow file; every error of it becomes an OSError."""
    kind = "an Arrow" if file.suffix.lower() == ARROW_SUFFIX else "a Parquet"
    try:
        pyarrow = importlib.import_module("pyarrow")
        reader = importlib.import_module("pyarrow.ipc" if kind == "an Arrow" else "pyarrow.parquet")
    except ImportError as error:
        raise OSError(
            errno.ENOPKG if hasattr(errno, "ENOPKG") else errno.ENOENT,
            f"{kind} file, which needs the package pyarrow (python -m trainer install pyarrow)",
            str(file),
        ) from error
    try:
        if kind == "an Arrow":
            with pyarrow.memory_map(str(file)) as source:
                yield ArrowTable(source, reader)
        else:
            with reader.ParquetFile(file) as table:
                yield ParquetTable(table)
    except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # pyarrow's own errors, about a truncated file, have no number
        raise OSError(
            errno.EINVAL, f"not a readable {kind.split()[1]} file ({plain_reason(error)})", str(file)
        ) from error
