"""The process that writes to the folder of a run: its lock, and the launch of torchrun that a restart continues.

torchrun starts all processes again with the same command line (`--max-restarts`). Their parent stays the same.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from modules.system.atomic import remove_quietly, write_text
from modules.system.errors import DarkroomError
from modules.system.file_lock import FileLock, Holder, LockTaken, living_holder
from modules.system.regular_files import read_json_object
from trainer.run_folder.backup import list_backups
from trainer.run_folder.inbox import INBOX_FILE
from trainer.run_folder.run_dir import age_of

LOCK_FILE = "run.lock"
_FILE = "launch.json"
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"


class RunLock:
    """A lock on a run's folder, held from its creation until `release`."""

    def __init__(self, run_dir: Path) -> None:
        """Lock the folder, and remove the commands to an earlier run: all that come from now on are for this one.

        Raises DarkroomError if another run holds the lock, OSError if it cannot be written.
        """
        path = run_dir / LOCK_FILE
        try:
            self._lock = FileLock(path)
        except LockTaken as taken:
            raise in_use(run_dir, taken.holder, is_certain=taken.is_certain) from None
        remove_quietly(run_dir / INBOX_FILE)

    def release(self) -> None:
        """Unlock the folder and remove the lock file."""
        self._lock.release()


def holder_of(run_dir: Path) -> Holder | None:
    """Return the process that trains in a run's folder at the moment, or None."""
    return living_holder(run_dir / LOCK_FILE)


def in_use(run_dir: Path, holder: Holder | None, *, is_certain: bool = True) -> DarkroomError:
    """Return the error that a run's folder is in use by a process, without raising it."""
    path = run_dir / LOCK_FILE
    name = "another program"
    if holder is not None and not holder.is_of_this_computer:
        name = f"a program on the computer {holder.host}"
    elif holder is not None and holder.is_this_process:
        name = "another run of this program"
    if_gone = "" if is_certain else f"If no program trains there any more, delete {path}."
    return DarkroomError(
        f"The run's folder {path.parent} is in use by {name}.",
        advice=f"Wait until that run has ended, or stop it. Then resume. {if_gone}".strip(),
    )


def mark_launch(run_dir: Path) -> None:
    """Record in a run's folder which launch of torchrun writes to it; without torchrun nothing."""
    if _RESTARTS in os.environ:
        write_text(run_dir / _FILE, json.dumps(_parent()))


def interrupted_run(workspace: Path) -> Path | None:
    """Return the newest backup of the run that this launch of torchrun began before it restarted its processes.

    None for the first start, and for a run that has no backup: it starts again.
    """
    if not os.environ.get(_RESTARTS, "").strip("0"):
        return None
    parent = _parent()
    runs = [file.parent for file in (workspace / "runs").glob(f"*/{_FILE}") if read_json_object(file) == parent]
    newest_first = sorted(runs, key=age_of, reverse=True)
    return next((backups[-1].path for run_dir in newest_first if (backups := list_backups(run_dir))), None)


def _parent() -> dict[str, object]:
    parent = Holder.of(os.getppid())
    return {"pid": parent.pid, "started": parent.started, "host": parent.host}
