"""The only `after` loop of the program. On every turn, within a time budget, it drains the queues of the threads, runs
requested redraws and continues sliced work; an error in one stops no other. `after` is passed in.
"""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from modules.system.process_setup import SWITCH_INTERVAL_SECONDS
from ui.loop.background import Background, JobScope
from ui.loop.signal import notify

INTERVAL_MS = 20
BUSY_INTERVAL_MS = 2
BUDGET_SECONDS = 0.008
FIRST_SLICE_SECONDS = 0.04
_BUILDING_SECONDS, _DRAWING_SECONDS = 0.05, 0.015  # for which background jobs wait

Drain = Callable[[float], bool]
_END = object()


@dataclass(slots=True)
class _Redraw:
    draw: Callable[[], None]
    not_before: float


class Pump:
    """Drains, redraws and continues tasks every 20 ms, for at most 8 ms unless a single step takes longer.

    `background` runs the jobs of the pages and windows, `lasting` the jobs of the models, which stay when the window is
    built anew.
    """

    def __init__(self, after: Callable[[int, Callable[[], None]], object]) -> None:
        self.lasting = Background()
        self.background = JobScope(self.lasting)
        self._after = after
        self._drains: list[Drain] = [self.lasting.drain]
        self._redraws: dict[Hashable, _Redraw] = {}
        self._draw_times: dict[Hashable, float] = {}
        self._tasks: dict[Hashable, Iterator[None]] = {}
        self._first_slice_left = FIRST_SLICE_SECONDS
        self._is_drawing = False
        self._is_stopped = False

    def start(self) -> None:
        """Start the loop."""
        self._after(INTERVAL_MS, self._turn)

    def stop(self) -> None:
        """Stop the loop."""
        self._is_stopped = True

    def add_source(self, drain: Drain) -> None:
        """Drain another source on every turn; `drain(deadline)` returns whether it had anything."""
        self._drains.append(drain)

    def remove_source(self, drain: Drain) -> None:
        """Stop draining a source."""
        self._drains.remove(drain)

    @property
    def sources(self) -> tuple[Drain, ...]:
        """The sources that are drained on every turn."""
        return tuple(self._drains)

    def forget_views(self, sources: Sequence[Drain]) -> None:
        """Drop all redraws, tasks and background jobs of the views, and all sources but these."""
        self._drains = list(sources)
        for waiting in (self._redraws, self._draw_times, self._tasks):
            waiting.clear()
        self.background.cancel_all()

    def redraw_soon(
        self,
        key: Hashable,
        draw: Callable[[], None],
        *,
        at_most_every_seconds: float = 0.0,
        quiet_seconds: float = 0.0,
    ) -> None:
        """Call `draw` once on a coming turn, however often it is requested until then.

        With `quiet_seconds`, only once it has not been requested for so long: when typing has stopped.
        """
        earliest = self._draw_times.get(key, float("-inf")) + at_most_every_seconds
        if quiet_seconds:
            earliest = max(earliest, time.perf_counter() + quiet_seconds)
        self._redraws[key] = _Redraw(draw, earliest)

    def forget(self, key: Hashable) -> None:
        """Drop the redraw and the task of a key."""
        self._redraws.pop(key, None)
        self._draw_times.pop(key, None)
        self._tasks.pop(key, None)

    def work_through(self, key: Hashable, task: Iterator[None]) -> None:
        """Start `task` now and continue it over many turns; it replaces the task of the same key.

        All tasks that are started between two turns together get 40 ms; then they wait for the next turn.
        """
        self._tasks[key] = task
        self.expect_drawing()
        begun = time.perf_counter()
        self._run_tasks(begun + self._first_slice_left, only=key)
        self._first_slice_left = max(0.0, self._first_slice_left - (time.perf_counter() - begun))

    def expect_drawing(self) -> None:
        """Hurry until the turn after the next: Tk draws what is built or shown now between the turns."""
        self._is_drawing = True
        self._hurry(_BUILDING_SECONDS)

    def _hurry(self, seconds: float) -> None:
        self.lasting.window_is_busy(seconds)
        hurry()

    def finish(self, key: Hashable) -> None:
        """Finish a task now."""
        for _ in self._tasks.pop(key, iter(())):
            pass

    @property
    def is_idle(self) -> bool:
        """Whether no task and no redraw is pending."""
        return not self._tasks and not self._redraws

    def tick(self, budget_seconds: float = BUDGET_SECONDS) -> None:
        """Do one turn's work now."""
        deadline = time.perf_counter() + budget_seconds
        self._begin_turn()
        for drain in list(self._drains):
            if drain in self._drains:
                notify(drain, deadline)
        self._work_until(deadline)

    def draw(self, budget_seconds: float = BUDGET_SECONDS) -> None:
        """Do one turn's work without draining the sources: their background work would delay the first drawing."""
        self._begin_turn()
        self._work_until(time.perf_counter() + budget_seconds)

    def _begin_turn(self) -> None:
        self._first_slice_left = FIRST_SLICE_SECONDS
        self._is_drawing = False

    def _work_until(self, deadline: float) -> None:
        self._draw(deadline)
        self._run_tasks(deadline)
        if not self._is_drawing:
            relax()

    def _turn(self) -> None:
        if self._is_stopped:
            return
        # Schedule the next turn first: a dialog that opens below has its own event loop, which then runs it.
        self._after(BUSY_INTERVAL_MS if self._tasks else INTERVAL_MS, self._turn)
        self.tick()

    def _draw(self, deadline: float) -> None:
        for key, redraw in list(self._redraws.items()):
            now = time.perf_counter()
            if now > deadline:
                return
            if now >= redraw.not_before and self._redraws.pop(key, None) is not None:
                self._draw_times[key] = now
                self._hurry(_DRAWING_SECONDS)
                notify(redraw.draw)

    def _run_tasks(self, deadline: float, *, only: Hashable = None) -> None:
        while self._tasks and time.perf_counter() < deadline:
            key, task = (only, self._tasks.get(only)) if only is not None else next(iter(self._tasks.items()))
            if task is None:
                return
            if self._continue(task) and self._tasks.get(key) is task:
                del self._tasks[key]

    def _continue(self, task: Iterator[None]) -> bool:
        """Do the next slice; return whether the task is over. One that fails is not retried."""
        is_over = True
        self.expect_drawing()

        def slice_of_work() -> None:
            nonlocal is_over
            is_over = next(task, _END) is _END

        notify(slice_of_work)
        return is_over


# New objects before a collection of the young generation, and how many collections of one generation are followed by
# one of the next. The first two take a few milliseconds; full ones take hundreds, and are rare this way.
_THRESHOLDS = (10_000, 10, 100)


# Two threads that only compute do a quarter less with it, so it is only for the moments of a busy window.
BUSY_SWITCH_INTERVAL_SECONDS = 0.000_02


def hurry() -> None:
    """Let a busy window's thread get the interpreter at once.

    Every call of Tk gives the interpreter up and waits for it, so long as the switch interval, while another thread
    computes: 40,000 calls that take 0.17 s alone took 3.0 s at 0.5 ms and 1.3 s at 0.1 ms, and take 0.6 s so.
    Only an interpreter that is kept smooth is changed.
    """
    if math.isclose(sys.getswitchinterval(), SWITCH_INTERVAL_SECONDS):
        sys.setswitchinterval(BUSY_SWITCH_INTERVAL_SECONDS)


def relax() -> None:
    """Undo `hurry`."""
    if math.isclose(sys.getswitchinterval(), BUSY_SWITCH_INTERVAL_SECONDS):
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)


def keep_interpreter_smooth() -> None:
    """Call it once, when the window is built: what exists by now stays until the end and is not collected.

    A run itself turns automatic collection off and on again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
