"""Interruptions within a step: a stop raises, a pause waits and does not count as training time."""

from __future__ import annotations

from collections.abc import Callable

from trainer.commands import CommandDesk


class Pauses:
    """Checks the desk between micro-batches, and between the denoising steps of a method that samples images."""

    def __init__(self, desk: CommandDesk, clock: Callable[[], float]) -> None:
        self._desk = desk
        self._clock = clock
        self._seconds = 0.0

    def check(self) -> None:
        """Wait while the run is paused. Raises StopRequested once it is to stop."""
        if not self._desk.is_paused:
            self._desk.check()
            return
        start = self._clock()
        self._desk.check()
        self._seconds += self._clock() - start

    def take_seconds(self) -> float:
        """Return the seconds spent paused since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
