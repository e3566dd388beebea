"""Atomic writes: after a crash there is the old file or the new one, never a partial one.

Everything is written beside its destination under a temporary name, flushed to the disk, and renamed. A rename
within one folder is atomic on every file system we run on.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

TEMPORARY_MARK = ".writing-"


@contextmanager
def atomic_file(destination: Path) -> Iterator[Path]:
    """Yield a temporary path beside `destination`; on success it replaces the destination, on error it is removed.

    Creates missing parent folders. Raises OSError.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f".{destination.name}{TEMPORARY_MARK}{uuid4().hex[:8]}")
    try:
        yield temporary
        _flush_file(temporary)
        temporary.replace(destination)
        flush_folder(destination.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(destination: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `destination`; on success it takes its place, on error it is removed.

    No operating system replaces a non-empty folder atomically: an existing destination is moved aside first, and moved
    back if the rename fails. If the program dies between the two, the next call for this destination moves it back.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    _put_back(destination)
    temporary = destination.with_name(f".{destination.name}{TEMPORARY_MARK}{uuid4().hex[:8]}")
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _flush_file(file)
            elif file.is_dir():
                flush_folder(file)
        flush_folder(temporary)
        _swap_folder(temporary, destination)
        flush_folder(destination.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(destination: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_file(destination) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_bytes(destination: Path, content: bytes) -> None:
    """Write bytes atomically."""
    with atomic_file(destination) as temporary:
        temporary.write_bytes(content)


def _swap_folder(temporary: Path, destination: Path) -> None:
    if not destination.exists():
        temporary.rename(destination)
        return
    aside = destination.with_name(f"{_aside_mark(destination)}{uuid4().hex[:8]}")
    destination.rename(aside)
    try:
        temporary.rename(destination)
    except BaseException:
        aside.rename(destination)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _put_back(destination: Path) -> None:
    """Undo an interrupted swap, and remove the old folder that a completed one left behind."""
    mark = _aside_mark(destination)
    for aside in sorted(p for p in destination.parent.iterdir() if p.name.startswith(mark)):
        if destination.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.rename(destination)


def _aside_mark(destination: Path) -> str:
    return f".{destination.name}{TEMPORARY_MARK}old-"


def _flush_file(file: Path) -> None:
    with file.open("rb+") as handle:
        os.fsync(handle.fileno())


def flush_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, where the system supports it (Windows and some network drives do not)."""
    if sys.platform == "win32":
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES):
            raise
