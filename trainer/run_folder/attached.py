"""A run of another process: one that outlives its window, or one that was begun on the command line.

Its events are read from its log, its commands are sent to its inbox. What the log does not keep, such as the progress
of a download, is seen only by the window that has started the process, which also writes all its events to a file.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.config.codec import export_file
from modules.system.atomic import remove_quietly
from modules.system.file_errors import plain_reason
from modules.system.file_lock import Holder
from trainer.child.process import detached_python, last_lines, new_log
from trainer.child.run import arguments_of, crash
from trainer.commands import Command, Stop
from trainer.event_lines import from_line
from trainer.events import Event, RunFailed, RunFinished, RunStarted, WarningRaised
from trainer.launch import RunRequest, module_arguments
from trainer.run_folder import inbox
from trainer.run_folder.elsewhere import elsewhere_of
from trainer.run_folder.event_log import EVENTS_FILE, last_event, num_whole_bytes
from trainer.run_folder.run_lock import holder_of

_MODULE = ("-m", "trainer")
_POLL_SECONDS = 0.25
_CONFIG, _EVENTS, _INBOX = ".json", ".jsonl", ".commands"
_TRACEBACK, _MANY_LINES = "Traceback (most recent call last)", 1000


@dataclass(frozen=True, slots=True)
class DetachedProcess:
    """A process that outlives its starter: its log, and next to it its config, all its events and its inbox."""

    process: Holder
    log: Path

    @property
    def config_file(self) -> Path:
        """The config that it trains."""
        return self.log.with_suffix(_CONFIG)

    @property
    def events_file(self) -> Path:
        """Every event as a line, also those that the log of a run does not keep."""
        return self.log.with_suffix(_EVENTS)

    @property
    def inbox_file(self) -> Path:
        """Where it reads commands."""
        return self.log.with_suffix(_INBOX)

    def run_dir(self) -> Path | None:
        """Return the folder of its run; None before it has one."""
        events = map(from_line, inbox.new_lines(self.events_file, 0)[0])
        return next((Path(event.run_dir) for event in events if isinstance(event, RunStarted)), None)

    def failure(self) -> RunFailed:
        """Return why it has ended before it trained, if it reported no event: the sentence that it printed."""
        printed = last_lines(self.log, _MANY_LINES)
        if printed and _TRACEBACK not in printed:
            return RunFailed(" ".join(printed.splitlines()[-2:]), details_path=str(self.log))
        return self.crash()

    def crash(self) -> RunFailed:
        """Return that it has ended without a reason, with its log if it is there."""
        return crash(self.log if self.log.is_file() else None)

    def remove_files(self) -> None:
        """Remove its files, once it has ended."""
        for file in (self.log, self.config_file, self.events_file, self.inbox_file):
            remove_quietly(file)


class AttachedRun:
    """A run of another process. Its events are read from its process's file or from its log, starting at a byte."""

    def __init__(self, run_dir: Path | None, *, from_byte: int = 0, detached: DetachedProcess | None = None) -> None:
        """Start to follow a run by its folder or its process, at least one of which must be given.

        A process that was started for a run counts as alive before it trains; from then on the run's lock decides.
        """
        assert run_dir is not None or detached is not None
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.detached = detached
        self._run_dir, self._from_byte, self._trains = run_dir, from_byte, detached is None
        self._events_file = detached.events_file if run_dir is None and detached else Path(run_dir or "", EVENTS_FILE)
        self._inbox_file = detached.inbox_file if detached else Path(run_dir or "", inbox.INBOX_FILE)
        self._is_left = threading.Event()
        self._is_to_stop = False
        self._log_byte: int | None = None  # up to which the log was read, while a process follows the run again
        self.thread = threading.Thread(target=self._follow, name="darkroom-attached-run", daemon=True)
        self.thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether events may still arrive. Some may remain in the queue afterwards."""
        return self.thread.is_alive()

    def send(self, command: Command) -> None:
        """Send a command to the run; never blocks. One that cannot be written is a warning among the events."""
        self._is_to_stop |= isinstance(command, Stop)
        try:
            inbox.send(self._inbox_file, command)
        except OSError as error:
            text = f"The command could not be written to {self._inbox_file}: {plain_reason(error)}."
            self.events.put(WarningRaised(text, "Check the disk, and try it again."))

    def leave(self) -> None:
        """Stop following the run, which continues."""
        self._is_left.set()

    def _follow(self) -> None:
        num_bytes, last = self._from_byte, None
        while not self._is_left.is_set():
            is_running = self._is_running()  # asked before reading: no event can follow the last one
            if self._log_byte is not None and self._is_followed_by_others():
                num_bytes = self._return_to_log(self._log_byte)
            lines, num_bytes = inbox.new_lines(self._events_file, num_bytes)
            for line in lines:
                event = from_line(line)
                if event is not None:
                    last = event
                    self.events.put(event)
                if isinstance(event, RunStarted) and self._run_dir is None:
                    self._run_dir = Path(event.run_dir)
            if not is_running:
                if not self._follows_again(last, num_bytes):
                    self._end(last)
                    return
                num_bytes = 0
            self._is_left.wait(_POLL_SECONDS)

    def _follows_again(self, last: Event | None, num_bytes: int) -> bool:
        """Return whether a run on another machine is followed by a new process: it continues if the one here is killed.

        A new one that could not connect is not replaced. `num_bytes` are those that were read of the events.
        """
        run_dir = self._run_dir
        if run_dir is None or not self._trains or (elsewhere := elsewhere_of(run_dir)) is None:
            return False
        if any(isinstance(event, RunFinished | RunFailed) for event in (last, last_event(run_dir))):
            return False
        self._log_byte = num_bytes if self._events_file == run_dir / EVENTS_FILE else num_whole_bytes(run_dir)
        try:
            self.detached = start_following(run_dir)
        except OSError:
            return False
        self._events_file, self._inbox_file = self.detached.events_file, self.detached.inbox_file
        self._trains = False
        if self._is_to_stop:  # the process that was killed may not have passed it on
            self.send(Stop())
        text = f"The program that followed the run on {elsewhere.remote} has ended."
        self.events.put(WarningRaised(text, "The run continues there, and is followed again."))
        return True

    def _is_followed_by_others(self) -> bool:
        """Return whether another program was faster to follow the run again, so that the process of this is refused."""
        holder = holder_of(self._run_dir) if self._run_dir is not None else None
        return holder is not None and self.detached is not None and holder.pid != self.detached.process.pid

    def _return_to_log(self, num_bytes: int) -> int:
        """Read the log of the run from a byte on, which is returned, and send commands to its own inbox."""
        self._events_file, self._inbox_file = (Path(self._run_dir or "", n) for n in (EVENTS_FILE, inbox.INBOX_FILE))
        self.detached = self._log_byte = None
        return num_bytes

    def _end(self, last: Event | None) -> None:
        """Report the end if the last event has not; the log of a process that ended without a reason is kept."""
        if not isinstance(last, RunFinished | RunFailed):
            # The log has it, if the run had ended before it was followed, or its other events could not be written.
            last = last_event(self._run_dir) if self._run_dir is not None and self._trains else None
            if not isinstance(last, RunFinished | RunFailed):
                self.events.put(self._failure())
                return
            self.events.put(last)
        if self.detached is not None:
            self.detached.remove_files()

    def _failure(self) -> RunFailed:
        if self.detached is None:
            return crash(None)
        return self.detached.failure() if self._run_dir is None or not self._trains else self.detached.crash()

    def _is_running(self) -> bool:
        if self._run_dir is not None and holder_of(self._run_dir) is not None:
            self._trains = True
            return True
        return not self._trains and self.detached is not None and self.detached.process.is_alive


def start_detached(request: RunRequest) -> DetachedProcess:
    """Start a run in a process of its own, which continues when its starter has ended. Raises OSError."""
    log = new_log()
    config_file = log.with_suffix(_CONFIG)
    module = _MODULE if request.on else module_arguments(request.config)
    try:
        export_file(request.config, config_file)
        return _start_process([*module, *arguments_of(request, config_file)], log)
    except OSError:
        remove_quietly(config_file)
        raise


def start_following(run_dir: Path, *, resumes: bool = False) -> DetachedProcess:
    """Follow a run on another machine in a process of its own; with `resumes`, resume it first. Raises OSError."""
    verb = "resume" if resumes else "attach"
    return _start_process([*_MODULE, "remote", verb, str(run_dir), "--json-lines"], new_log())


def _start_process(arguments: Sequence[str], log: Path) -> DetachedProcess:
    events_file, inbox_file = log.with_suffix(_EVENTS), log.with_suffix(_INBOX)
    try:
        with events_file.open("wb") as events, log.open("wb") as errors:
            process = detached_python([*arguments, f"--commands={inbox_file}"], events, errors)
    except OSError:
        for file in (events_file, log):
            remove_quietly(file)
        raise
    return DetachedProcess(Holder.of(process), log)


def launch_detached(request: RunRequest) -> AttachedRun:
    """Start a run in a process of its own and follow it from its first event on. Raises OSError."""
    return AttachedRun(None, detached=start_detached(request))
