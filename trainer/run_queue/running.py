"""Running the queue: which item is next, as what, and how it ended.

The caller launches the requests one after another and passes their events on: the window from its event loop, the
command line from a plain loop.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from modules.system.file_lock import FileLock, Holder
from trainer.child.process import detached_python, new_log
from trainer.commands import Stop
from trainer.events import Event, RunFailed, RunFinished, RunStarted
from trainer.launch import RunRequest
from trainer.run_folder.backup import list_backups
from trainer.run_folder.inbox import INBOX_FILE, send
from trainer.run_queue.file import QueueFile
from trainer.run_queue.items import Item, RunQueue
from trainer.run_status import RunStatus


class QueueRun:
    """This program runs the queue of a machine, from the creation of this object until `close`."""

    def __init__(self, file: QueueFile, machine: str = "") -> None:
        """Raises DarkroomError if another program runs the queue of this machine, or the file cannot be read."""
        self._file, self._machine = file, machine
        self._lock: FileLock | None = file.hold(machine)

    def take_next(self) -> Item | None:
        """Mark the next item as running and return it; None at the end of the queue."""
        taken: list[Item] = []

        def take(queue: RunQueue) -> RunQueue:
            taken.clear()
            item = queue.on(self._machine).next
            if item is None:
                return queue
            taken.append(item)
            return queue.begin(item.number)

        self._file.change(take)
        return taken[0] if taken else None

    def note(self, item: Item, event: Event) -> RunQueue | None:
        """Record the effect of an event of an item's run on the queue; None for events without an effect."""
        match event:
            case RunStarted():
                return self._file.change(lambda queue: queue.with_run_dir(item.number, event.run_dir))
            case RunFinished() | RunFailed():
                return self._file.change(lambda queue: queue.end(item.number, event.status, event.text))
            case _:
                return None

    def close(self) -> None:
        """Let another program run the queue."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def request_of(item: Item, *, allowed_code: frozenset[str] = frozenset()) -> RunRequest:
    """Return the request of an item: an interrupted run resumes from its newest backup, if it has one.

    On another machine it has continued, and is followed again.
    """
    request = RunRequest(item.config, in_window=False, allowed_code=allowed_code, on=item.machine)
    if item.machine:
        is_begun = item.state is RunStatus.INTERRUPTED and item.run_dir
        return replace(request, kind="follow", resume_from=Path(item.run_dir)) if is_begun else request
    backups = list_backups(Path(item.run_dir)) if item.run_dir else []
    if item.state is RunStatus.INTERRUPTED and backups:
        return replace(request, kind="resume", resume_from=backups[-1].path)
    return request


def start_detached_queue(
    machine: str = "", *, only_next: bool = False, allowed_code: Collection[str] = ()
) -> tuple[Holder, Path]:
    """Run the queue of a machine, or only its next item, in a process that continues when its starter has ended.

    Return it and its log. Raises OSError.
    """
    log = new_log()
    arguments = ["-m", "trainer", "queue", "run", *([f"--on={machine}"] if machine else []), "--json-lines"]
    arguments += ["--only-next"] if only_next else []
    arguments += [f"--allow-code-hash={digest}" for digest in sorted(allowed_code)]
    with log.open("wb") as errors:
        process = detached_python(arguments, subprocess.DEVNULL, errors)
    return Holder.of(process), log


def start_other_machines(file: QueueFile, *, allowed_code: Collection[str] = ()) -> tuple[str, ...]:
    """Start processes that run the queues of other machines, where none does; return the names of the machines.

    `allowed_code` are hashes of code that the runs of all of them may use.

    Raises DarkroomError if the file cannot be read, and OSError.
    """
    machines = tuple(name for name in file.read().other_machines if file.runner_on(name) is None)
    for name in machines:
        start_detached_queue(name, allowed_code=allowed_code)
    return machines


def skip(file: QueueFile, item: Item) -> RunQueue:
    """Stop the run of an item that another program trains; that program takes the next one.

    Raises DarkroomError and OSError.
    """
    queue = file.change(lambda now: now.skip(item.number))
    send(Path(item.run_dir) / INBOX_FILE, Stop())
    return queue


def continues_after(queue: RunQueue, number: int, state: RunStatus) -> bool:
    """Return whether the next item is trained after one that ended in a state: after a stop only if it was skipped."""
    if state is RunStatus.STOPPED:
        return any(item.is_skipped for item in queue.items if item.number == number)
    return state.is_complete or queue.after_failure == "continue"
