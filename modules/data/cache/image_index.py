"""An index of what earlier scans read from the files of folders: the headers of images, the texts of captions."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path

from modules.data.cache.stat_index import StatIndex, stored_name
from modules.system.atomic import remove_quietly

logger = logging.getLogger("darkroom.cache")

Row = tuple[str, int, int, str]
"""The name of a file, its size in bytes, its modification time in ns, and what was read of it."""

_TABLES = (
    "CREATE TABLE IF NOT EXISTS {0}.folders (id INTEGER PRIMARY KEY, path TEXT UNIQUE)",
    "CREATE TABLE IF NOT EXISTS {0}.files (folder INTEGER, name TEXT, bytes INTEGER, mtime_ns INTEGER, facts TEXT, "
    "PRIMARY KEY (folder, name)) WITHOUT ROWID",
)
_MOVE = (
    "INSERT OR IGNORE INTO kept.folders (path) SELECT path FROM main.folders",
    "INSERT OR REPLACE INTO kept.files SELECT there.id, name, bytes, mtime_ns, facts FROM main.files "
    "JOIN main.folders AS here ON here.id = folder JOIN kept.folders AS there ON there.path = here.path",
)


class ImageIndex:
    """A text for each file in a folder, by folder; and one for each other image, such as the images in archives.

    Both are valid while the file's size and date are the same, and stored in one SQLite file when `save` is called.
    Until then new ones are in a temporary database, which SQLite writes to disk if it gets large. Concurrent runs may
    share the file. It only saves time: without it, or with a damaged one, everything is read again.
    """

    def __init__(self, file: Path | None) -> None:
        """Without a file the texts are kept for as long as the index."""
        self.others = StatIndex(file, table="images", column="facts")
        self._file = file
        self._lock = threading.Lock()
        self._database = sqlite3.connect("", timeout=30, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA main.journal_mode = MEMORY")
        for statement in _TABLES:
            self._database.execute(statement.format("main"))
        self._is_attached = False
        self._is_usable = file is not None

    def rows(self, folder: Path, names: list[str]) -> dict[str, Row]:
        """Return the known facts about the files of a folder between the first and the last of these names, by name."""
        stored = list(map(stored_name, names))
        arguments = (stored_name(folder), min(stored), max(stored))
        with self._lock:
            rows = self._stored_rows(arguments) if self._is_usable else []
            rows += self._fresh(arguments)
        if any(name != plain for name, plain in zip(stored, names, strict=True)):
            plain_of = dict(zip(stored, names, strict=True))
            return {plain_of[row[0]]: row for row in rows if row[0] in plain_of}
        return {row[0]: row for row in rows}

    def keep(self, folder: Path, rows: Iterable[Row]) -> None:
        """Set the texts of files of a folder."""
        path = stored_name(folder)
        with self._lock:
            try:
                self._database.execute("INSERT OR IGNORE INTO main.folders (path) VALUES (?)", (path,))
                (number,) = self._database.execute("SELECT id FROM main.folders WHERE path = ?", (path,)).fetchone()
                self._database.execute("BEGIN")
                self._database.executemany(
                    "INSERT OR REPLACE INTO main.files VALUES (?, ?, ?, ?, ?)",
                    ((number, stored_name(name), *facts) for name, *facts in rows),
                )
                self._database.execute("COMMIT")
            except sqlite3.Error as error:  # such as a full disk
                logger.warning("What a scan has read is not kept: %s", error)
                self._roll_back()

    def save(self) -> None:
        """Write the texts added since the last save, all of them or none."""
        self.others.save()
        with self._lock:
            if self._file is None:
                return
            try:
                if not self._database.execute("SELECT COUNT(*) FROM main.files").fetchone()[0]:
                    return
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._attach(self._file)
                for statement in _TABLES:
                    self._database.execute(statement.format("kept"))
                self._database.execute("BEGIN IMMEDIATE")
                for statement in _MOVE:
                    self._database.execute(statement)
                self._database.execute("COMMIT")
                self._database.execute("DELETE FROM main.files")
                self._is_usable = True
            except (sqlite3.Error, OSError) as error:
                logger.warning("%s cannot be saved: %s", self._file, error)
                self._roll_back()
            self._detach()

    def _stored_rows(self, arguments: tuple[str, str, str]) -> list[Row]:
        assert self._file is not None
        try:
            if not self._is_attached:
                if not self._file.exists():
                    return []
                self._attach(self._file)
                names = self._database.execute("SELECT name FROM kept.sqlite_master").fetchall()
                self._is_usable = {("folders",), ("files",)} <= set(names)
            return self._select("kept", arguments) if self._is_usable else []
        except (sqlite3.OperationalError, OSError) as error:  # locked for too long, or not readable
            logger.warning("%s cannot be used: %s", self._file, error)
            self._detach()
        except sqlite3.DatabaseError as error:  # not a database, or a damaged one
            logger.warning("%s is damaged and is started anew: %s", self._file, error)
            self._detach()
            remove_quietly(self._file)
        self._is_usable = False
        return []

    def _fresh(self, arguments: tuple[str, str, str]) -> list[Row]:
        try:
            return self._select("main", arguments)
        except sqlite3.Error as error:
            logger.warning("What a scan has read cannot be found again: %s", error)
            return []

    def _roll_back(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def _select(self, database: str, arguments: tuple[str, str, str]) -> list[Row]:
        return self._database.execute(
            f"SELECT name, bytes, mtime_ns, facts FROM {database}.files "
            f"WHERE folder = (SELECT id FROM {database}.folders WHERE path = ?) AND name >= ? AND name <= ?",
            arguments,
        ).fetchall()

    def _attach(self, file: Path) -> None:
        if not self._is_attached:
            self._database.execute("ATTACH ? AS kept", (str(file),))
            self._is_attached = True

    def _detach(self) -> None:
        if self._is_attached:
            self._database.execute("DETACH kept")
            self._is_attached = False
