"""Parquet and Arrow files: images in their rows, as data sets on the Hugging Face hub have them, and columns of text.

They need the package pyarrow (`modules/data/table_files.py`).
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
from modules.system.regular_files import read_regular

# Folders of data sets that the package `datasets` saved (`save_to_disk`): which of their files hold the rows.
#
# A data set has data-*.arrow files, and state.json names them; next to them may lie files that `map` and `filter`
# cached. A folder with several splits has dataset_dict.json and a folder for each. Only names are read.

STATE_FILE, SPLITS_FILE = "state.json", "dataset_dict.json"
_MAX_BYTES = 10_000_000


def data_files(folder: Path) -> tuple[str, ...]:
    """Return the names of the files with a data set's rows; empty for any other folder."""
    files = _read(folder / STATE_FILE).get("_data_files")
    names = [f.get("filename") for f in files if isinstance(f, dict)] if isinstance(files, list) else []
    return tuple(n for n in names if isinstance(n, str))


def split_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the splits, which are subfolders of a data set; empty for any other folder."""
    splits = _read(folder / SPLITS_FILE).get("splits")
    return tuple(s for s in splits if isinstance(s, str)) if isinstance(splits, list) else ()


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(file, _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


ROW_SUFFIX = ".row"
_BYTES = "bytes"
_lock = threading.Lock()  # reading one group of rows twice, on two threads, would take its memory twice


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
    with opened_table(file) as table:
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
    with opened_table(file) as table:
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
    with opened_table(Path(file)) as table:
        counts = table.group_sizes()
    return tuple(accumulate(counts, initial=0))[:-1]


@lru_cache(maxsize=4)
def _group(file: str, size_bytes: int, mtime_ns: int, group: int, column: str) -> Any:
    with opened_table(Path(file)) as table:
        return table.column(group, column or next(iter(_image_columns(table.schema)), ""))
