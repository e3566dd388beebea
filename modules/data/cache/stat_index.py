"""Facts about files by their path, size and modification time, so that no unchanged file is opened again."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

from modules.system.atomic import remove_quietly

logger = logging.getLogger("darkroom.cache")

_ASKED_AT_ONCE = 500  # paths; SQLite allows 999 in any version


class StatedFile(Protocol):
    """A file with the size and the modification time that it had when it was found."""

    @property
    def path(self) -> Path: ...

    @property
    def path_text(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def mtime_ns(self) -> int: ...


class StatIndex:
    """One text for each file, valid while the file's size and modification time are the same.

    Stored in one SQLite file, from which only the texts that are asked for are read; concurrent runs may share it. It
    only saves time: an unreadable index is started anew, and where it cannot be read or written everything works
    without it. Threads may share one.
    """

    def __init__(self, file: Path | None, *, table: str, column: str) -> None:
        """`table` and `column` name the text in the database. The file and its folder are created when saved.

        Without a file the texts are kept in memory only.
        """
        self._file = file
        self._table = table
        self._column = column
        self._lock = threading.Lock()
        self._fresh: dict[str, tuple[int, int, str]] = {}
        self._database: sqlite3.Connection | None = None
        self._is_usable = True

    def find(self, path: Path, *, size_bytes: int, mtime_ns: int) -> str | None:
        """Return the text of a file, or None if it is new or has changed."""
        with self._lock:
            known = self._known_texts([stored_name(path)]).get(stored_name(path))
        return known[2] if known is not None and known[:2] == (size_bytes, mtime_ns) else None

    def find_all(self, files: Sequence[StatedFile]) -> list[str | None]:
        """Return the results of `find` for several files, in a fraction of the time."""
        names = [stored_name(file.path_text) for file in files]
        with self._lock:
            known = self._known_texts(names)
        return [
            facts[2] if (facts := known.get(n)) is not None and facts[:2] == (f.size_bytes, f.mtime_ns) else None
            for n, f in zip(names, files, strict=True)
        ]

    def keep(self, path: Path, text: str, *, size_bytes: int, mtime_ns: int) -> None:
        """Set the text of a file of that size and time."""
        with self._lock:
            self._fresh[stored_name(path)] = (size_bytes, mtime_ns, text)

    @property
    def num_unsaved(self) -> int:
        """The number of texts added since the last save; 0 without a file to save them in."""
        return 0 if self._file is None else len(self._fresh)

    def save(self) -> None:
        """Write the texts added since the last save, all of them or, if the program is killed, none."""
        if self._file is None:
            return
        with self._lock:
            self._close()
            if not self._fresh:
                return
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                with closing(self._connect(self._file)) as database, database:
                    self._create(database)
                    rows = ((name, *facts) for name, facts in self._fresh.items())
                    database.executemany(f"INSERT OR REPLACE INTO {self._table} VALUES (?, ?, ?, ?)", rows)
                self._fresh, self._is_usable = {}, True
            except (sqlite3.Error, OSError) as error:
                logger.warning("%s cannot be saved: %s", self._file, error)

    def _known_texts(self, names: Sequence[str]) -> dict[str, tuple[int, int, str]]:
        """Return the known texts of files: the new ones, and the ones in the database."""
        known = {n: self._fresh[n] for n in names if n in self._fresh}
        asked = [n for n in names if n not in known]
        for first in range(0, len(asked), _ASKED_AT_ONCE):
            for name, size_bytes, mtime_ns, text in self._rows(asked[first : first + _ASKED_AT_ONCE]):
                known[name] = (size_bytes, mtime_ns, text)
        return known

    def _rows(self, names: Sequence[str]) -> Iterable[tuple[str, int, int, str]]:
        if self._file is None or not self._is_usable:
            return ()
        try:
            if self._database is None:
                if not self._file.exists():
                    return ()
                self._database = self._connect(self._file)
                self._create(self._database)
            places = ",".join("?" * len(names))
            return self._database.execute(
                f"SELECT path, bytes, mtime_ns, {self._column} FROM {self._table} WHERE path IN ({places})", names
            ).fetchall()
        except (sqlite3.OperationalError, OSError) as error:  # locked for too long, or not readable
            logger.warning("%s cannot be used: %s", self._file, error)
        except sqlite3.DatabaseError as error:  # not a database, or a damaged one
            logger.warning("%s is damaged and is started anew: %s", self._file, error)
            self._close()
            remove_quietly(self._file)
        self._close()
        self._is_usable = False
        return ()

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _create(self, database: sqlite3.Connection) -> None:
        database.execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} "
            f"(path TEXT PRIMARY KEY, bytes INTEGER, mtime_ns INTEGER, {self._column} TEXT)"
        )

    def _connect(self, file: Path) -> sqlite3.Connection:
        return sqlite3.connect(file, timeout=30, check_same_thread=False)


def stored_name(path: Path | str) -> str:
    """Return a path or name as SQLite accepts it: in UTF-8."""
    name = os.fspath(path)
    return name if name.isascii() else os.fsencode(name).decode("utf-8", errors="backslashreplace")
