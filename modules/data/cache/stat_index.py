"""Facts about files by their path, size and modification time, so that no unchanged file is opened again."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from modules.system.atomic import remove_quietly

logger = logging.getLogger("darkroom.cache")


class StatIndex:
    """One text for each file, valid while the file's size and modification time are the same.

    Stored in one SQLite file; concurrent runs may share it. It only saves time: an unreadable index is started anew,
    and where it cannot be read or written everything works without it. Threads may share one.
    """

    def __init__(self, file: Path | None, *, table: str, column: str) -> None:
        """`table` and `column` name the text in the database. The file and its folder are created when saved.

        Without a file the texts are kept in memory only.
        """
        self._file = file
        self._table = table
        self._column = column
        self._lock = threading.Lock()
        self._known = self._read()
        self._fresh: dict[str, tuple[int, int, str]] = {}

    def find(self, path: Path, *, size_bytes: int, mtime_ns: int) -> str | None:
        """Return the text of a file, or None if it is new or has changed."""
        known = self._known.get(_name(path))
        return known[2] if known is not None and known[:2] == (size_bytes, mtime_ns) else None

    def keep(self, path: Path, text: str, *, size_bytes: int, mtime_ns: int) -> None:
        """Set the text of a file of that size and time."""
        with self._lock:
            self._known[_name(path)] = self._fresh[_name(path)] = (size_bytes, mtime_ns, text)

    def save(self) -> None:
        """Write the texts added since the last save."""
        with self._lock:
            rows, self._fresh = [(name, *facts) for name, facts in self._fresh.items()], {}
        if not rows or self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._connect(self._file)) as database, database:
                self._create(database)
                database.executemany(f"INSERT OR REPLACE INTO {self._table} VALUES (?, ?, ?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            logger.warning("%s cannot be saved: %s", self._file, error)

    def _read(self) -> dict[str, tuple[int, int, str]]:
        if self._file is None or not self._file.exists():
            return {}
        try:
            return self._rows(self._file)
        except (sqlite3.OperationalError, OSError) as error:  # locked for too long, or not readable
            logger.warning("%s cannot be used: %s", self._file, error)
            return {}
        except sqlite3.DatabaseError as error:  # not a database, or a damaged one
            logger.warning("%s is damaged and is started anew: %s", self._file, error)
            remove_quietly(self._file)
            return {}

    def _rows(self, file: Path) -> dict[str, tuple[int, int, str]]:
        with closing(self._connect(file)) as database, database:
            self._create(database)
            rows = database.execute(f"SELECT path, bytes, mtime_ns, {self._column} FROM {self._table}").fetchall()
        return {path: (size_bytes, mtime_ns, text) for path, size_bytes, mtime_ns, text in rows}

    def _create(self, database: sqlite3.Connection) -> None:
        database.execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} "
            f"(path TEXT PRIMARY KEY, bytes INTEGER, mtime_ns INTEGER, {self._column} TEXT)"
        )

    def _connect(self, file: Path) -> sqlite3.Connection:
        return sqlite3.connect(file, timeout=30)


def _name(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")  # SQLite only accepts UTF-8
