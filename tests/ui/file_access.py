"""A watch on the folders of a user, who may keep them on a slow drive: the Tk thread must not wait for it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from modules.system.paths import PROGRAM_ROOT

_AUDITED = ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove")
_STATUS = ("stat", "lstat", "access", "readlink")  # not audited
_watch: FileWatch | None = None
_is_hooked = False


class FileWatch:
    """Collects who touches a folder on the thread that made the watch: "ui/forms/fields.py browse: stat images"."""

    def __init__(self, folder: Path) -> None:
        self.accesses: set[str] = set()
        self._folder = str(folder)
        self._thread = threading.get_ident()

    def note(self, kind: str, path: object) -> None:
        """Record an access, by the innermost function of the window's code; the tests' own do not count."""
        if threading.get_ident() != self._thread or not str(path).startswith(self._folder):
            return
        frame, place = sys._getframe(2), ""
        while frame is not None:
            file = Path(frame.f_code.co_filename)
            if not place and file.is_relative_to(PROGRAM_ROOT / "ui"):
                place = f"{file.relative_to(PROGRAM_ROOT)} {frame.f_code.co_name}"
            frame = frame.f_back  # type: ignore[assignment]
        if place:
            self.accesses.add(f"{place}: {kind.removeprefix('os.')} {Path(str(path)).name}")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watch is not None and event in _AUDITED:
        _watch.note(event, arguments[0])


@contextmanager
def watch_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileWatch]:
    """Watch all access to a folder by this thread."""
    global _watch, _is_hooked
    if not _is_hooked:  # a hook cannot be removed
        sys.addaudithook(_audit)
        _is_hooked = True
    watch = FileWatch(folder)
    with monkeypatch.context() as patch:
        for name in _STATUS:
            patch.setattr(os, name, _noting(watch, name, getattr(os, name)))
        _watch = watch
        try:
            yield watch
        finally:
            _watch = None


def _noting(watch: FileWatch, name: str, plain: Any) -> Any:
    def noted(path: Any, *arguments: Any, **named: Any) -> Any:
        watch.note(name, path)
        return plain(path, *arguments, **named)

    return noted
