"""Interruptions within a step: a stop raises, a pause waits and does not count as training time."""

from __future__ import annotations

from collections.abc import Callable

from trainer.commands import CommandDesk
from trainer.events import Event, PhaseChanged


class Pauses:
    """Checks the desk between micro-batches, and between the denoising steps of a method that samples images."""

    def __init__(self, desk: CommandDesk, emit: Callable[[Event], None], clock: Callable[[], float]) -> None:
        self._desk = desk
        self._emit = emit
        self._clock = clock
        self._seconds = 0.0
        self._phase = PhaseChanged("training")

    def emit(self, event: Event) -> None:
        """Emit an event of the training method; after a pause its newest phase is reported again."""
        if isinstance(event, PhaseChanged):
            self._phase = event
        self._emit(event)

    def check(self) -> None:
        """Wait while the run is paused. Raises StopRequested once it is to stop."""
        if not self._desk.is_paused:
            self._desk.check()
            return
        start = self._clock()
        self._desk.check(lambda is_paused: self._emit(PhaseChanged("paused") if is_paused else self._phase))
        self._seconds += self._clock() - start

    def take_seconds(self) -> float:
        """Return the seconds spent paused since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
