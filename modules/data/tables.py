"""Parquet and Arrow files: images in their rows, as data sets on the Hugging Face hub have them, and columns of text.

They need the package pyarrow (`modules/data/table_files.py`). Torch-free.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from modules.data.table_files import opened_table

ROW_SUFFIX = ".row"
_BYTES = "bytes"
_lock = threading.Lock()  # reading one group of rows twice, on two threads, would take its memory twice


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The columns of a file with a table, the one that holds images (empty if none does), and its number of rows."""

    columns: tuple[str, ...]
    image_column: str
    num_rows: int


def row_name(row: int) -> str:
    """Return the name of a row's image, as the last part of its path."""
    return f"{row:08d}{ROW_SUFFIX}"


def table_facts(file: Path) -> TableFacts:
    """Return what a file contains; no image is read. Raises OSError."""
    with opened_table(file) as table:
        names = tuple(table.schema.names)
        return TableFacts(names, _image_column(table.schema), sum(table.group_sizes()))


def read_row_image(file: Path, row: int) -> bytes:
    """Return the content of the image in a row. Raises OSError, also for a row that has none.

    The last few groups of rows stay in memory: rows that are near each other are read together.
    """
    status = file.stat()
    version = (os.fspath(file), status.st_size, status.st_mtime_ns)
    with _lock:
        starts = _group_starts(*version)
        group = max((i for i, start in enumerate(starts) if start <= row), default=-1)
        cells = _group(*version, group) if group >= 0 else ()
    content = _image_of(cells[row - starts[group]].as_py()) if group >= 0 and row - starts[group] < len(cells) else b""
    if not content:
        raise FileNotFoundError(errno.ENOENT, f"row {row} of {file.name} has no image", str(file))
    return content


def read_texts(file: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a file with only some of their columns. Raises OSError."""
    with opened_table(file) as table:
        return table.rows(columns)


def _image_column(schema: Any) -> str:
    """Return the first column that `datasets` marked as images, or that holds encoded images; empty if none does."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        marked = [n for n in schema.names if features.get(n, {}).get("_type") == "Image"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        marked = []
    likely = [field.name for field in schema if _holds_images(field)]
    return next((name for name in marked if name in likely), likely[0] if likely else "")


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
    with opened_table(Path(file)) as table:
        counts = table.group_sizes()
    return tuple(accumulate(counts, initial=0))[:-1]


@lru_cache(maxsize=4)
def _group(file: str, size_bytes: int, mtime_ns: int, group: int) -> Any:
    with opened_table(Path(file)) as table:
        return table.column(group, _image_column(table.schema))
