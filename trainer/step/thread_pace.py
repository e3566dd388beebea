"""When a run on a CPU should use fewer threads for a while, because other programs need the cores. Torch-free.

Every thread of a matrix product waits for the slowest one, so where another program takes a core away, all of them wait
for it: on two cores a step was seen to take six times as long with two threads as with one. Whether fewer threads are
faster is not assumed but tried, for a few steps, where there is a sign for it. On a machine with nothing else to do
there is no sign, and the number never changes.
"""

from __future__ import annotations

import statistics
from collections import deque

_WINDOW_STEPS = 5
_TRIAL_STEPS = 3
_SLOWED = 1.5
"""A step is slowed down if it takes this much longer than the fastest ones with as many threads."""
_WORTH_IT = 0.85
"""Another number of threads is kept if a step takes less than this share of its time before."""
_FEWEST_STEPS_BETWEEN = 10
_MOST_STEPS_BETWEEN = 640


class ThreadPace:
    """Decides after each step how many threads the next one should have, from 1 to the number that the run chose."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._most = num_threads
        self._newest: deque[tuple[float, float]] = deque(maxlen=_WINDOW_STEPS)  # seconds and cores of a step
        self._fastest: dict[int, float] = {}
        self._tried_from: tuple[int, float] | None = None  # the number before the current trial, and its seconds
        self._was_lowered = False  # by the last trial: even fewer may be faster still
        self._ignores_next = True  # the first step, and the first after a change, is slower
        self._patience = _FEWEST_STEPS_BETWEEN
        self._steps_until_trial = 0

    @property
    def is_trying(self) -> bool:
        """Whether the current number of threads is only tried."""
        return self._tried_from is not None

    def after_step(self, seconds: float, available_cores: float) -> int:
        """Return the number of threads for the next step.

        `seconds` is the time of a step per image, `available_cores` how many cores other programs left during it.
        """
        if self._ignores_next:
            self._ignores_next = False
            return self.num_threads
        self._newest.append((seconds, available_cores))
        median_seconds, median_cores = (statistics.median(values) for values in zip(*self._newest, strict=True))
        if self._tried_from is not None:
            if len(self._newest) == _TRIAL_STEPS:
                self._end_trial(*self._tried_from, median_seconds)
        else:
            self._steps_until_trial -= 1
            if len(self._newest) == _WINDOW_STEPS:
                self._look_for_sign(median_seconds, median_cores)
        return self.num_threads

    def _look_for_sign(self, seconds: float, available_cores: float) -> None:
        """Begin a trial if another number of threads may be faster."""
        count = self.num_threads
        fastest = self._fastest[count] = min(seconds, self._fastest.get(count, seconds))
        wanted = max(1, min(self._most, round(available_cores)))
        if count > 1 and (seconds > _SLOWED * fastest or self._was_lowered):
            wanted = min(wanted, count // 2)
        if wanted != count and self._steps_until_trial <= 0:
            self._tried_from = count, seconds
            self._use(wanted)

    def _end_trial(self, former: int, former_seconds: float, seconds: float) -> None:
        self._tried_from = None
        is_faster = seconds < _WORTH_IT * former_seconds
        self._was_lowered = is_faster and self.num_threads < former
        if is_faster:
            self._patience = _FEWEST_STEPS_BETWEEN
            self._newest.clear()
        else:
            self._patience = min(2 * self._patience, _MOST_STEPS_BETWEEN)
            self._use(former)
        self._steps_until_trial = self._patience

    def _use(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._newest.clear()
        self._ignores_next = True
