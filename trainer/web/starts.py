"""The processes that the page has started, until they train: each loads torch first, and may be refused."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from modules.system.file_lock import Holder
from trainer.event_lines import from_line
from trainer.events import RunFailed, RunFinished, RunStarted
from trainer.run_folder import inbox
from trainer.run_folder.attached import DetachedProcess
from trainer.run_folder.elsewhere import elsewhere_of
from trainer.run_folder.run_lock import holder_of
from trainer.run_queue.file import QueueFile


@dataclass(frozen=True, slots=True)
class Start:
    """How the start of a run stands: it is on its way, or was refused, for a reason that is in no log of the run."""

    is_under_way: bool = False
    refusal: str = ""


class Starts:
    """The starts of runs, and of the queue of this computer, that the page has begun. Thread-safe.

    A request holds `beginning` while it begins one: of two at the same time, the second finds the start of the first.
    """

    def __init__(self, file: QueueFile) -> None:
        self._file = file
        self._runs: dict[Path, DetachedProcess] = {}
        self._queue: Holder | None = None
        self._lock = threading.Lock()
        self.beginning = threading.Lock()

    def add(self, run_dir: Path, process: DetachedProcess) -> None:
        """Add the process that is to train in a run's folder."""
        with self._lock:
            self._runs[run_dir] = process

    def add_queue(self, process: Holder) -> None:
        """Add the process that is to run the queue of this computer."""
        with self._lock:
            self._queue = process

    @property
    def is_queue_under_way(self) -> bool:
        """Whether the process that is to run the queue lives, and does not run it yet."""
        with self._lock:
            if self._queue is not None and (not self._queue.is_alive or self._file.runner is not None):
                self._queue = None
            return self._queue is not None

    @property
    def is_any_under_way_here(self) -> bool:
        """Whether a run or the queue is about to train on this computer."""
        here = [run_dir for run_dir in list(self._runs) if elsewhere_of(run_dir) is None]
        return self.is_queue_under_way or any(self.of(run_dir).is_under_way for run_dir in here)

    def of(self, run_dir: Path) -> Start:
        """Return how the newest start of a run stands; it is forgotten once the run trains."""
        with self._lock:
            process = self._runs.get(run_dir)
            if process is None:
                return Start()
            is_alive = process.process.is_alive  # asked before the lock, which it may take meanwhile
            if holder_of(run_dir) is None:
                if is_alive:
                    return Start(is_under_way=True)
                if refusal := _refusal_of(process):
                    return Start(refusal=refusal)
            del self._runs[run_dir]
            return Start()


def _refusal_of(process: DetachedProcess) -> str:
    """Return why a process that has ended never trained; empty if it did: then the run's log has its end."""
    for event in map(from_line, inbox.new_lines(process.events_file, 0)[0]):
        if isinstance(event, RunStarted | RunFinished):
            return ""
        if isinstance(event, RunFailed):
            return event.text
    return process.failure().text
