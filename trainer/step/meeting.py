"""Where the processes of a run meet: before each step. There they stop together, and wait for the main process."""

from __future__ import annotations

from collections.abc import Callable

from trainer.commands import CommandDesk, StopAgreed, StopRequested
from trainer.events import Event, PhaseChanged
from trainer.ranks import Ranks


class Meeting:
    """Replaces the checks for a stop and for early stopping between steps, in a run of several processes.

    Commands reach the main process, except for a stop by a signal, which may reach any. The others wait here while the
    main process samples, validates, writes a backup or is paused.
    """

    def __init__(
        self, ranks: Ranks, *, desk: CommandDesk, should_stop: Callable[[], bool], emit: Callable[[Event], None]
    ) -> None:
        """`should_stop()` is whether early stopping ends the run; only that of the main process is asked."""
        self._ranks = ranks
        self._desk = desk
        self._should_stop = should_stop
        self._emit = emit

    def hold(self) -> bool:
        """Meet the others; return whether early stopping ends the run. Raises StopAgreed in all once one is to stop."""
        is_stopping = False
        try:
            self._desk.check(lambda is_paused: self._emit(PhaseChanged("paused" if is_paused else "training")))
        except StopRequested:
            is_stopping = True
        ends_early = self._ranks.rank.is_main and self._should_stop()
        num_stopping, num_ending = self._ranks.sums([is_stopping, ends_early])
        if num_stopping:
            raise StopAgreed
        return num_ending > 0

    def stop_others(self, stop: StopRequested) -> None:
        """After a stop in the work of the main process alone: let the others, which wait at the next meeting, stop."""
        if not isinstance(stop, StopAgreed):
            self._ranks.sums([True, False])
