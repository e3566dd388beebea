"""The commands a user can send to a running training, and the desk that holds them until the trainer takes them.

The window (or a signal, or the parent process) puts commands on the desk from any thread. The training thread calls
`check()` between micro-batches, between cached items and between denoising steps: it waits there while the run is
paused and raises `StopRequested` once the run is to stop. Commands for the next full step (sample, validate, back up,
save) are collected, and the callbacks take them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import get_args

from modules.system.regular_files import json_object_in


@dataclass(frozen=True, slots=True)
class Stop:
    """End the run as soon as possible and write a backup to resume from."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause as soon as possible. With `free_memory` the card's memory is freed until the run continues."""

    free_memory: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """Continue after a pause."""


@dataclass(frozen=True, slots=True)
class SampleNow:
    """Generate the samples after the current step."""


@dataclass(frozen=True, slots=True)
class ValidateNow:
    """Validate after the current step."""


@dataclass(frozen=True, slots=True)
class BackupNow:
    """Write a backup after the current step."""


@dataclass(frozen=True, slots=True)
class SaveNow:
    """Save a usable model file after the current step."""


@dataclass(frozen=True, slots=True)
class ProfileNow:
    """Profile the next steps, and write where their time goes."""


@dataclass(frozen=True, slots=True)
class ReportNow:
    """Measure the loss of every image after the current step, and write a report."""


StepCommand = SampleNow | ValidateNow | BackupNow | SaveNow | ProfileNow | ReportNow
Command = Stop | Pause | Resume | StepCommand

COMMAND_TYPES: Mapping[str, type[Command]] = {kind.__name__: kind for kind in get_args(Command)}


class StopRequested(Exception):  # noqa: N818 - not an error: the user requested it
    """Raised by `CommandDesk.check` once the run is to stop; unwinds to the loop, which ends cleanly."""


class StopAgreed(StopRequested):
    """Raised in all processes of a run at the same place: they have agreed on it."""


class CommandDesk:
    """Holds commands until the training thread takes them. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_stopped = False
        self._is_paused = False
        self._is_pause_unreported = False
        self._frees_memory = False
        self._wanted: set[type[StepCommand]] = set()
        self.freed_memory: Callable[[], AbstractContextManager[None]] = nullcontext
        """A context in which the run's memory on the card is free. The run sets it once it can; until then a pause
        keeps the memory."""
        self.on_pause: Callable[[bool], None] = lambda is_paused: None
        """Called with True by the thread that is to wait, also when another pause follows, and with False after it.

        So is a pause that was taken back before the thread came to it: who asked for it may not be who took it back.
        """

    def put(self, command: Command) -> None:
        """Add a command; never blocks."""
        with self._changed:
            match command:
                case Stop():
                    self._is_stopped = True
                case Pause(free_memory=frees_memory):
                    self._is_paused = self._is_pause_unreported = True
                    self._frees_memory = frees_memory
                case Resume():
                    self._is_paused = False
                case wanted:
                    self._wanted.add(type(wanted))
            self._changed.notify_all()

    @property
    def is_stop_requested(self) -> bool:
        """Whether the run is to stop."""
        return self._is_stopped

    @property
    def is_paused(self) -> bool:
        """Whether the run is to pause."""
        return self._is_paused and not self._is_stopped

    def check(self) -> None:
        """Wait while paused; raise StopRequested once the run is to stop."""
        if self.is_paused:
            self._wait()
            self._is_pause_unreported = False
            self.on_pause(False)
        elif self._is_pause_unreported and not self._is_stopped:
            self._is_pause_unreported = False
            self.on_pause(True)
            self.on_pause(False)
        if self._is_stopped:
            raise StopRequested

    def _wait(self) -> None:
        """Wait while paused, with the memory freed as long as the newest pause frees it."""
        while self.is_paused:
            is_freed = self._frees_memory
            self.on_pause(True)
            with self.freed_memory() if is_freed else nullcontext(), self._changed:
                self._changed.wait_for(lambda: not self.is_paused or self._frees_memory != is_freed)  # noqa: B023

    def has(self, kind: type[StepCommand]) -> bool:
        """Return whether a command of this kind waits to be taken."""
        return kind in self._wanted

    def take(self, kind: type[StepCommand]) -> bool:
        """Return whether a command of this kind was added since the last call, and clear it."""
        with self._changed:
            was_wanted = kind in self._wanted
            self._wanted.discard(kind)
            return was_wanted


def to_line(command: Command) -> str:
    """Return the command as one line of JSON."""
    return json.dumps({"command": type(command).__name__, **asdict(command)})


def from_line(line: str) -> Command | None:
    """Return the command of a line, or None for any other line."""
    data = json_object_in(line) or {}
    kind = COMMAND_TYPES.get(str(data.get("command")))
    if kind is Pause:
        return Pause(free_memory=data.get("free_memory") is True)
    return kind() if kind else None
