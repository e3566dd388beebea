"""The events and commands between a run on another machine and its user here, over a connection that may be lost."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from trainer.commands import Command, Stop, StopRequested
from trainer.events import Event, WarningRaised
from trainer.remote.connection import Connection, ConnectionLostError, unreachable
from trainer.remote.record import Remote

_WAITS_SECONDS = (0.5, 2, 5, 15, 30)

Connect = Callable[[Remote], Connection]


class Line:
    """Carries events from a follower to its user, and commands back; `leave` ends the following."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self.emit = emit
        self.commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self.is_left = threading.Event()
        self._kept: list[Command] = []

    def leave(self) -> None:
        """Follow the run no longer; it continues."""
        self.is_left.set()

    def take(self) -> list[Command]:
        """Return the commands since the last call."""
        commands, self._kept = self._kept, []
        while not self.commands.empty():
            commands.append(self.commands.get())
        return commands

    def pass_on(self, send: Callable[[Command], object]) -> None:
        """Send the commands since the last call; those that were not sent, as the connection was lost, remain."""
        self._kept = self.take()
        while self._kept:
            send(self._kept[0])
            del self._kept[0]

    def check(self) -> None:
        """Raise StopRequested if the run is to stop, or the user has left, before it has begun."""
        self._kept = self.take()
        if self.is_left.is_set() or any(isinstance(command, Stop) for command in self._kept):
            raise StopRequested


def persistently(
    remote: Remote, line: Line, work: Callable[[Connection], None], *, connect: Connect = Connection
) -> None:
    """Do work that needs a connection; after a lost one connect again, as often as it takes, until the user leaves.

    Raises what the work raises, and DarkroomError if the machine cannot be reached at all.
    """
    attempt, was_connected = 0, False
    while not line.is_left.is_set():
        try:
            with connect(remote) as connection:
                attempt, was_connected = 0, True
                work(connection)
            return
        except ConnectionLostError as error:
            if not was_connected:
                raise unreachable(remote, error) from error
            if attempt == 0:
                line.emit(WarningRaised(f"The connection to {remote.name} was lost: {error}.", "It is tried again."))
        line.is_left.wait(_WAITS_SECONDS[min(attempt, len(_WAITS_SECONDS) - 1)])
        attempt += 1
