"""The file of the queue: one for all windows and command lines of the user.

Every change reads the file, changes it and replaces it atomically under a lock, so that two programs never undo each
other's changes. Another lock marks the program that runs the queue; each other machine has such a lock of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

from modules.system.atomic import make_folder, write_text
from modules.system.errors import DarkroomError
from modules.system.file_errors import describe_file_error
from modules.system.file_lock import FileLock, Holder, LockTaken, living_holder, locked_soon
from trainer.run_queue.items import Change, RunQueue, from_json

_PATIENCE_SECONDS = 10.0


class QueueFile:
    """The queue on disk. A missing file is an empty queue."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> RunQueue:
        """Return the queue; an item whose program has ended is interrupted.

        Raises DarkroomError for a file that cannot be read; it is never overwritten.
        """
        try:
            queue = from_json(json.loads(self.path.read_text(encoding="utf-8")))
            return queue.recover(self._is_run)
        except FileNotFoundError:
            return RunQueue()
        except OSError as error:
            message, advice = describe_file_error(error)
            raise DarkroomError(f"The queue cannot be read. {message}", advice=advice) from error
        except (ValueError, RecursionError) as error:
            raise DarkroomError(
                f"The queue in {self.path} cannot be read: {error}.",
                advice="Rename or remove the file to start with an empty queue.",
            ) from error

    def change(self, change: Change) -> RunQueue:
        """Change the queue on disk and return it. Raises DarkroomError, and OSError if it cannot be written."""
        make_folder(self.path.parent)
        try:
            lock = locked_soon(self._sibling(".lock"), patience_seconds=_PATIENCE_SECONDS)
        except LockTaken:
            raise DarkroomError(
                f"The queue in {self.path} is in use by another program.", advice="Try again in a moment."
            ) from None
        try:
            changed = change(self.read())
            write_text(self.path, json.dumps(changed.to_json(), indent=1, ensure_ascii=False) + "\n")
        finally:
            lock.release()
        return changed

    def stamp(self) -> tuple[int, int] | None:
        """Return a value that changes with the file; None without a file."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    def hold(self, machine: str = "") -> FileLock:
        """Become the program that runs the queue of a machine; release the lock afterwards.

        Runs that were interrupted when an earlier program ended are marked. Raises DarkroomError if another program
        runs the queue.
        """
        make_folder(self.path.parent)
        try:
            lock = FileLock(self._sibling(_running(machine)))
        except LockTaken:
            of = f" of {machine}" if machine else ""
            raise DarkroomError(
                f"Another program is running the queue{of}.",
                advice="Items that you add here are trained by it, too. Stop it there to run the queue here.",
            ) from None
        try:
            self.change(lambda queue: queue.recover(lambda other: other != machine and self._is_run(other)))
        except BaseException:
            lock.release()
            raise
        return lock

    @property
    def runner(self) -> Holder | None:
        """The process that runs the queue of this computer; None if none does."""
        return self.runner_on("")

    def runner_on(self, machine: str) -> Holder | None:
        """Return the process that runs the queue of a machine; None if none does."""
        return living_holder(self._sibling(_running(machine)))

    def _is_run(self, machine: str) -> bool:
        return self.runner_on(machine) is not None

    def _sibling(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)


def _running(machine: str) -> str:
    return f".running-{machine}" if machine else ".running"
