"""A lock file that one process at a time holds.

The system holds the lock while the file is open and releases it however the process ends, so the file of a killed
process is stale because it is unlocked. The file names the process that holds it. On a file system without locks (some
network drives) that entry decides: the process is alive if its id is in use by a process with the same start time; a
reused process id has another start time.

The library filelock would replace a third of this, and does not fit. The window and the messages need the holder, which
its system locks do not name. It keeps the file after a release, which would then name a process that still runs. On
drives without locks it raises most of the errors after which the entry decides here.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from modules.system.regular_files import json_object_in

_LOCKED_BYTE = 1 << 20  # beyond the text: Windows refuses to read a locked byte
_MAX_TEXT_BYTES = 4096
_SAME_START_SECONDS = 2.0
_RETRY_SECONDS = 0.01
_TAKEN = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that a lock file names. `started` is its start time in seconds since 1970."""

    pid: int
    started: float
    host: str

    @classmethod
    def of(cls, pid: int) -> Holder:
        """Return a process of this computer."""
        return cls(pid, _start_of(pid), platform.node())

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs. A process of another computer counts as alive: it cannot be checked."""
        return not self.is_of_this_computer or abs(_start_of(self.pid) - self.started) < _SAME_START_SECONDS

    @property
    def is_of_this_computer(self) -> bool:
        """Whether the process runs on this computer."""
        return self.host == platform.node()

    @property
    def is_this_process(self) -> bool:
        """Whether it is the current process."""
        return self.pid == os.getpid() and self.is_of_this_computer


class LockTaken(Exception):  # noqa: N818 - the state of a file; callers turn it into a message
    """Another holder has the lock; `holder` is None if the file names none.

    `is_certain` is false on a file system without locks, where only the entry in the file is known.
    """

    def __init__(self, holder: Holder | None, *, is_certain: bool) -> None:
        super().__init__(str(holder))
        self.holder = holder
        self.is_certain = is_certain


class FileLock:
    """A lock held from its creation until `release`."""

    def __init__(self, path: Path, holder: Holder | None = None) -> None:
        """Lock the file for this process. `holder` describes it; without one the description is read from the system.

        Raises LockTaken if the file is locked, OSError if it cannot be written.
        """
        self._path = path
        self._file = _open_and_lock(path)
        try:
            self._file.truncate(0)
            self._file.write(json.dumps(asdict(holder or Holder.of(os.getpid()))).encode())
        except BaseException as error:
            self.release()
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(path)
            raise

    def release(self) -> None:
        """Unlock and remove the file."""
        if self._file.closed:
            return
        if sys.platform != "win32":  # before unlocking, so that this cannot be the file of the next holder
            with suppress(OSError):
                self._path.unlink()
        self._file.close()
        if sys.platform == "win32":  # an open file cannot be removed there, so the next holder's file is safe
            with suppress(OSError):
                self._path.unlink()


def locked_soon(path: Path, *, patience_seconds: float, check: Callable[[], None] = lambda: None) -> FileLock:
    """Wait for a lock that others hold for moments. Raises LockTaken after `patience_seconds`, and OSError.

    `check` is called often meanwhile, and may raise to stop.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            return FileLock(path)
        except LockTaken:
            if time.monotonic() >= deadline:
                raise
        check()
        time.sleep(_RETRY_SECONDS)


def living_holder(path: Path) -> Holder | None:
    """Return the process that a lock file names if it still runs; the lock of another process is not touched.

    The file of a lock that this process has released may still be there: a disk that became read-only keeps it.
    """
    try:
        with path.open("rb") as file:
            holder = _read_holder(file)
            if holder is not None and holder.is_this_process and _try_lock(file):
                return None
    except OSError:
        return None
    return holder if holder is not None and holder.is_alive else None


def _open_and_lock(path: Path) -> BinaryIO:
    """Return the lock file, opened and locked. Raises LockTaken if it is already locked."""
    while True:
        file = path.open("ab+", buffering=0)
        try:
            is_free = _try_lock(file)
            holder = _read_holder(file)
            if is_free is False:
                raise LockTaken(holder, is_certain=True)
            if is_free is None and holder is not None and holder.is_alive:
                raise LockTaken(holder, is_certain=False)
            if _is_at(path, file):
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # it was released and removed just before it was locked: try again


def _try_lock(file: BinaryIO) -> bool | None:
    """Return whether the file was locked; None if the file system does not support locks."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(file.fileno(), _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _TAKEN else None
    return True


def _read_holder(file: BinaryIO) -> Holder | None:
    """Return the process a lock file names; None if it names none, for example after a full disk."""
    file.seek(0)
    match json_object_in(file.read(_MAX_TEXT_BYTES)):
        case {"pid": int(pid), "started": float(started), "host": str(host)}:
            return Holder(pid, started, host)
        case _:
            return None


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _start_of(pid: int) -> float:
    """Return the start time of a process in seconds since 1970; minus infinity if there is no such process."""
    with suppress(OSError, ValueError, IndexError):
        return _start_in_proc(pid)
    import psutil  # a twentieth of the window's start

    try:
        return float(psutil.Process(pid).create_time())
    except (psutil.Error, ValueError, OverflowError):
        return -float("inf")


def _start_in_proc(pid: int) -> float:
    """Return the same start time as psutil, from proc(5): starttime and btime. Raises OSError without the process."""
    state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the name may hold spaces
    if state == "Z":  # it has ended, and its parent has not noticed
        return -float("inf")
    ticks = fields[18]
    booted = Path("/proc/stat").read_text().partition("\nbtime ")[2].split()[0]
    return float(booted) + int(ticks) / os.sysconf("SC_CLK_TCK")
