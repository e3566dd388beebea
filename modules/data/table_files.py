"""Parquet and Arrow files behind one interface: their columns, and groups of their rows.

They need the package pyarrow, which is imported only when such a file is read. No code of a file is run.
"""

from __future__ import annotations

import errno
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

ARROW_SUFFIX = ".arrow"
TABLE_SUFFIXES = frozenset({".parquet", ARROW_SUFFIX})
_RANDOM_ACCESS = b"ARROW1"  # the first bytes of the Arrow file format; the stream format has none


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
def opened_table(file: Path) -> Iterator[TableFile]:
    """Open a Parquet or Arrow file; every error of it becomes an OSError."""
    kind = "an Arrow" if file.suffix.lower() == ARROW_SUFFIX else "a Parquet"
    try:
        pyarrow = importlib.import_module("pyarrow")
        reader = importlib.import_module("pyarrow.ipc" if kind == "an Arrow" else "pyarrow.parquet")
    except ImportError as error:
        raise OSError(
            errno.ENOPKG if hasattr(errno, "ENOPKG") else errno.ENOENT,
            f"{kind} file, which needs the package pyarrow (pip install pyarrow)",
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
        raise OSError(errno.EINVAL, f"not a readable {kind.split()[1]} file ({error})", str(file)) from error
