"""A run of another process: one that continues without its window, or one that was begun on the command line.

Its events are read from its log, its commands are sent to its inbox. What the log does not keep, such as the progress
of a download, is not seen.
"""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from uuid import uuid4

from modules.config.codec import export_file
from modules.system.file_lock import Holder
from modules.system.paths import log_dir
from trainer.child.process import detached_python
from trainer.child.run import arguments_of
from trainer.commands import Command
from trainer.event_lines import from_line
from trainer.events import Event, RunFailed, RunFinished, WarningRaised
from trainer.launch import RunRequest, module_arguments
from trainer.run_folder import inbox
from trainer.run_folder.event_log import EVENTS_FILE, last_event
from trainer.run_folder.run_lock import holder_of

_POLL_SECONDS = 0.25


class AttachedRun:
    """A run of another process, followed from a byte of its log on."""

    def __init__(self, run_dir: Path, *, from_byte: int, process: Holder | None = None, log: str = "") -> None:
        """Follow a run at once. `process` may have been started for it without training yet, and writes to `log`.

        A run empties its inbox when it begins, so commands to a process that does not train yet wait until it does.
        """
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._run_dir, self._from_byte, self._process, self._log = run_dir, from_byte, process, log
        self._early: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._is_left = threading.Event()
        self.thread = threading.Thread(target=self._follow, name="darkroom-attached-run", daemon=True)
        self.thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether events may still arrive. Some may remain in the queue afterwards."""
        return self.thread.is_alive()

    def send(self, command: Command) -> None:
        """Send a command to the run; never blocks. One that cannot be written is a warning among the events."""
        if self._process is not None:
            self._early.put(command)
            return
        try:
            inbox.send(self._run_dir, command)
        except OSError as error:
            text = f"The command could not be written to {self._run_dir / inbox.INBOX_FILE}: {error}."
            self.events.put(WarningRaised(text, "Check the disk, and try it again."))

    def leave(self) -> None:
        """Follow the run no longer; it continues."""
        self._is_left.set()

    def _follow(self) -> None:
        num_bytes, last = self._from_byte, None
        while not self._is_left.is_set():
            is_running = self._is_running()  # asked before reading: no event can follow the last one
            lines, num_bytes = inbox.new_lines(self._run_dir / EVENTS_FILE, num_bytes)
            for line in lines:
                event = from_line(line)
                if event is not None:
                    last = event
                    self.events.put(event)
            if not is_running:
                if not isinstance(last, RunFinished | RunFailed):
                    self.events.put(self._ending())
                return
            self._is_left.wait(_POLL_SECONDS)
            while self._process is None and not self._early.empty():
                self.send(self._early.get())

    def _ending(self) -> Event:
        """Return the event for the end: the log's last one, if the run had ended before it was followed."""
        last = last_event(self._run_dir) if self._process is None else None
        if isinstance(last, RunFinished | RunFailed):
            return last
        details = self._log if self._log and Path(self._log).is_file() else ""
        return RunFailed("The training process ended unexpectedly.", "Resume it from its newest backup.", details)

    def _is_running(self) -> bool:
        if holder_of(self._run_dir) is not None:
            self._process = None  # it trains; from now on its lock counts
            return True
        return self._process is not None and self._process.is_alive


def start_detached(request: RunRequest) -> tuple[Holder, Path]:
    """Start a run in a process of its own; return it, and the log that it writes to. Raises OSError.

    It continues when its starter has ended, and is followed as an `AttachedRun`.
    """
    folder = log_dir()
    folder.mkdir(parents=True, exist_ok=True)
    name = f"child-{uuid4().hex[:8]}"
    config_file, log = folder / f"{name}.json", folder / f"{name}.log"
    export_file(request.config, config_file)
    arguments = [a for a in arguments_of(request, config_file) if a != "--json-lines"]
    with log.open("wb") as errors:
        process = detached_python([*module_arguments(request.config), *arguments], errors)
    return Holder.of(process), log
