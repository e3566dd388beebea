"""A full disk: writes below a folder fail, also to files that are already open."""

from __future__ import annotations

import builtins
import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest


class FullDisk:
    """Lets every write below `folder` raise ENOSPC while `is_full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, *, is_full: bool = False) -> None:
        self.folder = folder
        self.is_full = is_full
        self._plain_open = io.open
        for module in (builtins, io):  # pathlib has the one, logging the other
            monkeypatch.setattr(module, "open", self._open)

    def _open(self, file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **options: Any) -> Any:
        is_here = not isinstance(file, int) and self.folder in Path(os.fsdecode(file)).absolute().parents
        if not is_here or not set(mode) & set("wax+"):
            return self._plain_open(file, mode, buffering, *rest, **options)
        raw = _File(self, file, mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *rest, **options)


class _File(io.FileIO):
    def __init__(self, disk: FullDisk, file: Any, mode: str) -> None:
        super().__init__(file, mode)
        self._disk = disk

    def write(self, content: Any) -> int:
        if self._disk.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(content)
