"""The pace of a run: a warning where its steps are much slower than they were, or than the last good run's."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Protocol

import psutil
import torch

from modules.system.devices import Device
from modules.system.hardware import process_memory
from trainer.events import Event, WarningRaised
from trainer.machine_events import PaceMeasured
from trainer.step.callback import StepView

_IGNORED_STEPS = 10  # of a start: kernels are chosen, blocks compiled and memory reserved
_WINDOW_STEPS, _MIN_STEPS, _WINDOW_SECONDS = 50, 5, 60.0
_SLOWER, _AS_BEFORE = 1.3, 1.15  # times the usual seconds
_MIN_SECONDS = 0.1  # of a difference worth a warning: in fast steps, smaller ones come from other programs
_MAX_WARNINGS = 3
_SWAPPED_BYTES = 200e6
_FULL_SHARE = 0.97
_ADVICE = (
    "Close what else uses the processor, the card or the memory. If it stays slow, stop, lower the memory (Fit to my "
    "card) and resume."
)


class CausesOfSlowness(Protocol):
    """Finds out what slows a run down."""

    def __call__(self) -> Iterator[str]:
        """Yield the likely causes as parts of a sentence, the likeliest first."""
        ...


@dataclass(frozen=True, slots=True)
class EarlierPace:
    """The pace of an earlier run with the same settings: its name, and the seconds of a step.

    `changes` is a sentence about what changed since, `likely` one about the likely cause; empty if only one thing did.
    """

    name: str
    step_seconds: float
    changes: str
    likely: str = ""


@dataclass(frozen=True, slots=True)
class Peaks:
    """Memory in bytes: of the process, the pinned part of it, and on the card."""

    process: int = 0
    pinned: int = 0
    card: int = 0


@dataclass(frozen=True, slots=True)
class Pace:
    """The seconds of steps: a fifth is faster than `low`, a fifth slower than `high`; `middle` is the mean between."""

    low: float
    middle: float
    high: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Pace:
        """Return the pace of at least three steps."""
        ordered = sorted(seconds)
        fifth = len(ordered) // 5
        between = ordered[fifth : len(ordered) - fifth]
        return Pace(between[0], statistics.fmean(between), between[-1])

    def is_slower(self, usual: Pace, times: float) -> bool:
        """Return whether both the faster and the slower steps take so many times longer than usual."""
        return _is_much_slower(self.low, usual.low, times) and _is_much_slower(self.high, usual.high, times)

    def or_faster(self, one: Pace, other: Pace) -> Pace:
        """Return this pace; each of its values is replaced by the slower one of two others if both are faster."""
        return Pace(*(min(s, max(a, b)) for s, a, b in zip(astuple(self), astuple(one), astuple(other), strict=True)))


class PaceWatch:
    """Compares the time of steps to the time of the run's own fastest steps, and to an earlier run's.

    It compares windows of 50 steps, or of a minute's steps if these are fewer. In a slow window both the faster and the
    slower steps take longer than in any two windows before: a random mix of image sizes changes only one of the two,
    and single slow steps change neither. A warning requires two slow windows in a row; a further warning also requires
    that the run was fast again in between. It also measures memory, at each window.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        causes: CausesOfSlowness,
        *,
        peaks: Callable[[], Peaks] = Peaks,
        earlier: Callable[[], EarlierPace | None] = lambda: None,
    ) -> None:
        """`earlier` is called once, after the second window: it reads the folders of other runs."""
        self._emit = emit
        self._causes = causes
        self._peaks = peaks
        self._earlier = earlier
        self._process_peak = 0
        self._ignored: list[float] = []
        self._window: list[float] = []
        self._middles: list[float] = []  # of the windows
        self._num_steps = 0
        self._usual = self._last = Pace(math.inf, math.inf, math.inf)
        self._num_slow = 0
        self._is_warned = False
        self._num_warnings = 0

    def after_step(self, view: StepView) -> None:
        """Note the time of a step."""
        self._num_steps += 1
        if len(self._ignored) < _IGNORED_STEPS:
            self._ignored.append(view.seconds)
            return
        self._window.append(view.seconds)
        is_long = len(self._window) >= _MIN_STEPS and sum(self._window) >= _WINDOW_SECONDS
        if len(self._window) >= _WINDOW_STEPS or is_long:
            self._add_window(Pace.of(self._window), view.now.step)
            self._window = []

    def report(self) -> None:
        """Report the pace and the memory, unless there was no step: for the end of a run."""
        if not self._num_steps:
            return
        now = self._peaks()
        seconds = statistics.median(self._middles or self._window or self._ignored)
        process = max(self._process_peak, now.process)
        self._emit(PaceMeasured(self._num_steps, seconds, process, now.pinned, now.card))

    def _add_window(self, pace: Pace, step: int) -> None:
        self._process_peak = max(self._process_peak, self._peaks().process)
        self._middles.append(pace.middle)
        self._num_slow = self._num_slow + 1 if pace.is_slower(self._usual, _SLOWER) else 0
        if not pace.is_slower(self._usual, _AS_BEFORE):
            self._is_warned = False
        if len(self._middles) == 2 and (earlier := self._earlier()) is not None:
            self._compare_with(earlier, min(self._middles))
        self._usual, self._last = self._usual.or_faster(pace, self._last), pace
        if self._num_slow < 2 or self._is_warned or self._num_warnings == _MAX_WARNINGS:
            return
        self._is_warned = True
        self._num_warnings += 1
        seconds, usual = pace.middle, self._usual.middle
        self._emit(
            WarningRaised(
                f"Steps have become slower: {seconds:.3g} s each up to step {step:,}, {seconds / usual:.1f} times the "
                f"{usual:.3g} s of before. {self._likely() or 'No cause was found in memory, swap and load.'}",
                _ADVICE,
            )
        )

    def _compare_with(self, earlier: EarlierPace, seconds: float) -> None:
        """Warn if even the faster one of the first two windows is much slower than an earlier run."""
        if not _is_much_slower(seconds, earlier.step_seconds, _SLOWER):
            return
        self._emit(
            WarningRaised(
                f"A step takes {seconds:.3g} s, {seconds / earlier.step_seconds:.1f} times the "
                f"{earlier.step_seconds:.3g} s of the run {earlier.name} with these settings. "
                f"{' '.join(text for text in (earlier.changes, self._likely() or earlier.likely) if text)}",
                _ADVICE,
            )
        )

    def _likely(self) -> str:
        causes = list(self._causes())
        return f"Likely: {'; '.join(causes)}." if causes else ""


def _is_much_slower(seconds: float, usual: float, times: float) -> bool:
    return seconds > max(times * usual, usual + _MIN_SECONDS)


class MachineCauses:
    """Looks for the causes on this machine: memory that is swapped, a full card, other programs on the processor."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._swapped = _swapped_bytes()

    def __call__(self) -> Iterator[str]:
        """Yield the findings."""
        swapped = _swapped_bytes() - self._swapped
        if swapped > _SWAPPED_BYTES:
            yield f"the computer has swapped {swapped / 1e9:.1f} GB of memory to disk and back since the start"
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device.torch)
            if free < (1 - _FULL_SHARE) * total:
                yield "the card's memory is full, so its driver may keep a part of it in the computer's memory"
        load, num_cores = psutil.getloadavg()[0], os.cpu_count() or 1
        if load > 1.5 * num_cores:
            yield f"programs wait for the processor ({load:.0f} at once on {num_cores} cores)"


def _swapped_bytes() -> int:
    """Return the bytes that were swapped in and out since the machine started."""
    try:
        swap = psutil.swap_memory()
    except (OSError, RuntimeError):  # where the system does not report it
        return 0
    return int(swap.sin + swap.sout)


def measure_peaks(device: Device) -> Peaks:
    """Return the memory that the process holds now, and the most that it has pinned and held on the card."""
    process = process_memory()
    if device.type != "cuda":
        return Peaks(process)
    return Peaks(process, _pinned_peak(), torch.cuda.max_memory_reserved(device.torch))


def _pinned_peak() -> int:
    """Return the most bytes of the computer's memory that torch has pinned; 0 where its build does not report it."""
    try:
        return int(torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0))
    except (AttributeError, RuntimeError):
        return 0
