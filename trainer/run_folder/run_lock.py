"""The lock on a run's folder: only one run at a time may write to it. Torch-free."""

from __future__ import annotations

from pathlib import Path

from modules.system.errors import DarkroomError
from modules.system.file_lock import FileLock, Holder, LockTaken, living_holder

LOCK_FILE = "run.lock"


class RunLock:
    """A lock on a run's folder, held from its creation until `release`."""

    def __init__(self, run_dir: Path) -> None:
        """Lock the folder. Raises DarkroomError if another run holds the lock, OSError if it cannot be written."""
        path = run_dir / LOCK_FILE
        try:
            self._lock = FileLock(path)
        except LockTaken as taken:
            raise in_use(run_dir, taken.holder, is_certain=taken.is_certain) from None

    def release(self) -> None:
        """Unlock the folder and remove the lock file."""
        self._lock.release()


def holder_of(run_dir: Path) -> Holder | None:
    """Return the process that trains in a run's folder at the moment; None if there is none."""
    return living_holder(run_dir / LOCK_FILE)


def in_use(run_dir: Path, holder: Holder | None, *, is_certain: bool = True) -> DarkroomError:
    """Return the error that a run's folder is in use by a process, without raising it."""
    path = run_dir / LOCK_FILE
    match holder:
        case None:
            name = "another process"
        case Holder() if holder.is_this_process:
            name = f"another run of this program (process {holder.pid})"
        case Holder(pid=pid, host=host):
            name = f"another process (process {pid} on {host})"
    if_gone = "" if is_certain else f"If that process no longer runs, delete {path}."
    return DarkroomError(
        f"The run's folder {path.parent} is in use by {name}.",
        advice=f"Wait until that run has ended, or stop it. Then resume. {if_gone}".strip(),
    )
