"""The lock on a run's folder: only one run at a time may write to it. Torch-free.

The system holds the lock on `run.lock` while the file is open and releases it however the process ends, so the file of
a killed process is stale because it is unlocked. The file names the process that holds it. On a file system without
locks (some network drives) that entry decides: the process is alive if its id is in use by a process with the same
start time; a reused process id has another start time.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from modules.system.errors import DarkroomError

LOCK_FILE = "run.lock"
_LOCKED_BYTE = 1 << 20  # beyond the text: Windows refuses to read a locked byte
_MAX_TEXT_BYTES = 4096
_SAME_START_SECONDS = 2.0
_TAKEN = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that a lock file names. `started` is its start time in seconds since 1970."""

    pid: int
    started: float
    host: str

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs. A process of another computer counts as alive: it cannot be checked."""
        return self.host != platform.node() or abs(_start_of(self.pid) - self.started) < _SAME_START_SECONDS


class RunLock:
    """A lock on a run's folder, held from its creation until `release`."""

    def __init__(self, run_dir: Path) -> None:
        """Lock the folder. Raises DarkroomError if another run holds the lock, OSError if it cannot be written."""
        self._path = run_dir / LOCK_FILE
        self._file = _locked(self._path)
        try:
            holder = Holder(os.getpid(), _start_of(os.getpid()), platform.node())
            self._file.truncate(0)
            self._file.write(json.dumps(asdict(holder)).encode())
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Unlock the folder and remove the lock file."""
        if self._file.closed:
            return
        if sys.platform != "win32":  # before unlocking, so that this cannot be the file of the next run
            with suppress(OSError):
                self._path.unlink()
        self._file.close()
        if sys.platform == "win32":  # an open file cannot be removed there, so the next run's file is safe
            with suppress(OSError):
                self._path.unlink()


def _locked(path: Path) -> BinaryIO:
    """Return the lock file, opened and locked. Raises DarkroomError if it is already locked."""
    while True:
        file = path.open("ab+", buffering=0)
        try:
            is_free = _try_lock(file)
            holder = _read_holder(file)
            if is_free is False:
                raise _in_use(path, holder)
            if is_free is None and holder is not None and holder.is_alive:
                raise _in_use(path, holder, f"If that process no longer runs, delete {path}.")
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
    try:
        data = json.loads(file.read(_MAX_TEXT_BYTES))
    except (ValueError, RecursionError):
        return None
    match data:
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
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except (psutil.Error, ValueError, OverflowError):
        return -float("inf")


def _in_use(path: Path, holder: Holder | None, if_gone: str = "") -> DarkroomError:
    match holder:
        case None:
            name = "another process"
        case Holder(pid=pid) if pid == os.getpid() and holder.host == platform.node():
            name = f"another run of this program (process {pid})"
        case Holder(pid=pid, host=host):
            name = f"another process (process {pid} on {host})"
    return DarkroomError(
        f"The run's folder {path.parent} is in use by {name}.",
        advice=f"Wait until that run has ended, or stop it. Then resume. {if_gone}".strip(),
    )
