"""Records the calls that change files below a folder, and lets one of them fail.

Python's own calls are wrapped: `open` with its writes, and what `os` does to names. Only SQLite writes by itself, and
its index of known files may be lost.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import psutil
import pytest

from modules.system import atomic, leftovers

Kind = Literal["open", "create", "write", "truncate", "fsync", "mkdir", "rename", "exchange", "unlink", "rmdir"]
Fault = Literal["ENOSPC", "EIO", "EACCES", "EROFS", "torn"]
FAULTS: tuple[Fault, ...] = ("ENOSPC", "EIO", "EACCES", "EROFS", "torn")

NOBODY = 1 << 22  # the process that crashes has a number that no system gives
_STAYS: tuple[Fault, ...] = ("ENOSPC", "EROFS")  # a disk that is full or cannot be written stays so
_NEEDS_ROOM: tuple[Kind, ...] = ("create", "write", "mkdir")
_BY_HANDLE: tuple[Kind, ...] = ("write", "truncate", "fsync")  # errors of these name no file


@dataclass(frozen=True, slots=True)
class Call:
    """A call that changed the disk. `path` is relative to the folder; `to` is the other name of a rename or exchange.

    `handle` is the number of the open file that a write goes to, `place` its offset.
    """

    kind: Kind
    path: str
    to: str = ""
    handle: int = 0
    place: int = 0
    content: bytes = b""


@dataclass
class Recorder:
    """Records the calls below `folder`; from the number `fail_at` on (from 1), they fail with `fault`."""

    folder: Path
    fail_at: int = 0
    fault: Fault = "EIO"
    calls: list[Call] = field(default_factory=list)
    marks: list[tuple[int, Any]] = field(default_factory=list)
    failed: Call | None = None
    """The first call that failed."""
    _handles: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def mark(self, what: Any) -> None:
        """Note that something was said after the calls so far."""
        with self._lock:
            self.marks.append((len(self.calls), what))

    def relative(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return a path relative to the folder; None outside of it."""
        if isinstance(path, int):
            name = str(Path(f"/proc/self/fd/{path}").readlink())
        else:
            name = os.fsdecode(path)
            if dir_fd is not None:
                name = str(Path(f"/proc/self/fd/{dir_fd}").readlink() / name)
        absolute = Path(os.path.abspath(name))  # noqa: PTH100 - links are not followed
        return str(absolute.relative_to(self.folder)) if absolute.is_relative_to(self.folder) else None

    def happen(self, call: Call, do: Callable[[], Any], *, half: Callable[[], object] = lambda: None) -> Any:
        """Carry out a call and record it, or let it fail. `half` does the first half of it."""
        with self._lock:
            if self._fails(call):
                if self.failed is None:
                    self.failed = call
                if self.fault == "torn":
                    half()
                raise self._error(call)
            result = do()
            self.calls.append(call)
            return result

    def new_handle(self) -> int:
        """Return the number of a file that is being opened."""
        with self._lock:
            self._handles += 1
            return self._handles

    def _fails(self, call: Call) -> bool:
        if not self.fail_at:
            return False
        if self.failed is None:
            return len(self.calls) + 1 == self.fail_at
        return self.fault in _STAYS and (self.fault == "EROFS" or call.kind in _NEEDS_ROOM)

    def _error(self, call: Call) -> OSError:
        number = errno.ENOSPC if self.fault == "torn" else getattr(errno, self.fault)
        if call.kind in _BY_HANDLE:
            return OSError(number, os.strerror(number))
        path = str(self.folder / call.path)
        return OSError(number, os.strerror(number), path, *((None, str(self.folder / call.to)) if call.to else ()))


class _File(io.FileIO):
    """A file whose writes are recorded."""

    def __init__(self, recorder: Recorder, path: Any, relative: str, mode: str) -> None:
        self._recorder, self._relative, self._handle = recorder, relative, recorder.new_handle()
        kind: Kind = "create" if "w" in mode or not os.path.lexists(path) else "open"

        def open_it() -> None:
            super(_File, self).__init__(path, mode)

        recorder.happen(Call(kind, relative, handle=self._handle, place=int("w" in mode)), open_it)
        self._appends = "a" in mode

    def write(self, content: Any) -> int:
        """Write and record."""
        data = bytes(content)
        place = os.fstat(self.fileno()).st_size if self._appends else self.tell()
        call = Call("write", self._relative, handle=self._handle, place=place, content=data)
        plain = super().write
        return int(self._recorder.happen(call, lambda: plain(data), half=lambda: plain(data[: len(data) // 2])))

    def truncate(self, size: int | None = None, /) -> int:
        """Truncate and record."""
        size = self.tell() if size is None else size
        call = Call("truncate", self._relative, handle=self._handle, place=size)
        plain = super().truncate
        return int(self._recorder.happen(call, lambda: plain(size)))


@contextmanager
def recording(folder: Path, *, fail_at: int = 0, fault: Fault = "EIO", is_crash: bool = False) -> Iterator[Recorder]:
    """Record what happens below a folder. With `is_crash` the writer is a process that will be dead afterwards."""
    recorder = Recorder(folder.absolute(), fail_at, fault)
    leftovers.sweep_once.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        if is_crash:
            plain_os = ModuleType("os")  # psutil reads the memory of this process by its number
            plain_os.__dict__.update(os.__dict__)
            patch.setattr(psutil, "os", plain_os)
            patch.setattr(os, "getpid", lambda: NOBODY)
        _wrap_open(patch, recorder)
        _wrap_names(patch, recorder)
        _wrap_exchange(patch, recorder)
        yield recorder
    leftovers.sweep_once.cache_clear()


def _wrap_open(patch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    plain, plain_os = io.open, os.open

    def open_file(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **options: Any) -> Any:
        relative = None if isinstance(file, int) else recorder.relative(file)
        if relative is None or not set(mode) & set("wax+"):
            return plain(file, mode, buffering, *rest, **options)
        raw = _File(recorder, file, relative, mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *rest, **options)

    def open_handle(path: Any, flags: int, *rest: Any, dir_fd: int | None = None, **options: Any) -> int:
        relative = recorder.relative(path, dir_fd) if flags & os.O_CREAT else None
        if relative is None:
            return plain_os(path, flags, *rest, dir_fd=dir_fd, **options)
        call = Call("create", relative, handle=recorder.new_handle())
        return int(recorder.happen(call, lambda: plain_os(path, flags, *rest, dir_fd=dir_fd, **options)))

    for module in (builtins, io):  # pathlib has the one, logging the other
        patch.setattr(module, "open", open_file)
    patch.setattr(os, "open", open_handle)
    patch.setattr(shutil, "_USE_CP_SENDFILE", False)


def _wrap_names(patch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    def one(name: str, kind: Kind) -> None:
        plain = getattr(os, name)

        def call(path: Any, *rest: Any, dir_fd: int | None = None, **options: Any) -> Any:
            relative = recorder.relative(path, dir_fd)
            extra = {} if dir_fd is None else {"dir_fd": dir_fd}
            if relative is None or not _is_possible(kind, recorder.folder / relative):
                return plain(path, *rest, **extra, **options)
            return recorder.happen(Call(kind, relative), lambda: plain(path, *rest, **extra, **options))

        patch.setattr(os, name, call)

    def two(name: str) -> None:
        plain = getattr(os, name)

        def call(source: Any, target: Any, **options: Any) -> Any:
            relative, to = recorder.relative(source), recorder.relative(target)
            if relative is None or to is None:
                return plain(source, target, **options)
            return recorder.happen(Call("rename", relative, to), lambda: plain(source, target, **options))

        patch.setattr(os, name, call)

    def fsync(handle: Any) -> None:
        relative = recorder.relative(handle if isinstance(handle, int) else handle.fileno())
        if relative is not None:
            recorder.happen(Call("fsync", relative), lambda: None)

    for name, kind in (("mkdir", "mkdir"), ("unlink", "unlink"), ("remove", "unlink"), ("rmdir", "rmdir")):
        one(name, kind)  # type: ignore[arg-type]
    two("rename")
    two("replace")
    patch.setattr(os, "fsync", fsync)


def _is_possible(kind: Kind, path: Path) -> bool:
    """Whether the call would change something: a folder that exists is not created, nor nothing removed."""
    return os.path.lexists(path) is (kind != "mkdir")


def _wrap_exchange(patch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    exchange = atomic.exchange

    def exchanged(one: Path, other: Path) -> bool:
        relative, to = recorder.relative(one), recorder.relative(other)
        assert relative is not None
        assert to is not None
        return bool(recorder.happen(Call("exchange", relative, to), lambda: exchange(one, other)))

    patch.setattr(atomic, "exchange", exchanged)
