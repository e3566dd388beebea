"""Parquet files: images in their rows, as data sets on the Hugging Face hub have them, and columns of text.

They need the package pyarrow, which is imported only when a Parquet file is read. Torch-free.
"""

from __future__ import annotations

import errno
import importlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

TABLE_SUFFIXES = frozenset({".parquet"})
ROW_SUFFIX = ".row"
_BYTES = "bytes"
_lock = threading.Lock()  # reading one group of rows twice, on two threads, would take its memory twice


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The columns of a Parquet file, those that hold images, and its number of rows."""

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
    """Return what a Parquet file contains; only its end is read. Raises OSError."""
    with _parquet(file) as table:
        schema = table.schema_arrow
        images = tuple(f.name for f in schema if _holds_images(f))
        return TableFacts(tuple(schema.names), images, table.metadata.num_rows)


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
    """Return the rows of a Parquet file with only some of their columns. Raises OSError."""
    with _parquet(file) as table:
        rows: list[dict[str, Any]] = table.read(columns=list(columns)).to_pylist()
        return rows


@contextmanager
def _parquet(file: Path) -> Iterator[Any]:
    """Open a Parquet file; every error of it becomes an OSError."""
    try:
        pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise OSError(
            errno.ENOPKG if hasattr(errno, "ENOPKG") else errno.ENOENT,
            "a Parquet file, which needs the package pyarrow (pip install pyarrow)",
            str(file),
        ) from error
    try:
        with parquet.ParquetFile(file) as table:
            yield table
    except (pyarrow.ArrowException, ValueError, KeyError) as error:
        raise OSError(errno.EINVAL, f"not a readable Parquet file ({error})", str(file)) from error


def _holds_images(field: Any) -> bool:
    """Return whether a column holds encoded images: plain bytes, or bytes beside a path."""
    kind = str(field.type)
    return kind in ("binary", "large_binary") or (kind.startswith("struct<") and f"{_BYTES}: " in kind)


def _image_of(cell: Any) -> bytes:
    content = cell.get(_BYTES) if isinstance(cell, dict) else cell
    return content if isinstance(content, bytes) else b""


@lru_cache(maxsize=256)
def _group_starts(file: str, size_bytes: int, mtime_ns: int) -> tuple[int, ...]:
    """Return the first row of each group of rows. The arguments after the path identify the version of the file."""
    with _parquet(Path(file)) as table:
        counts = [table.metadata.row_group(i).num_rows for i in range(table.metadata.num_row_groups)]
    return tuple(sum(counts[:i]) for i in range(len(counts)))


@lru_cache(maxsize=4)
def _group(file: str, size_bytes: int, mtime_ns: int, group: int, column: str) -> Any:
    column = column or table_facts(Path(file)).image_column
    with _parquet(Path(file)) as table:
        return table.read_row_group(group, columns=[column]).column(0).combine_chunks()
