"""A warning where the steps of a run become much slower than they were, with the likely cause."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from typing import Protocol

import psutil
import torch

from modules.system.devices import Device
from trainer.events import Event, WarningRaised
from trainer.step.callback import StepView

_IGNORED_STEPS = 10  # of a start: kernels are chosen, blocks compiled and memory reserved
_WINDOW_STEPS, _LEAST_STEPS, _WINDOW_SECONDS = 50, 5, 60.0
_SLOWER, _AS_BEFORE = 1.3, 1.15  # times the usual seconds
_LEAST_SECONDS = 0.1  # of a difference worth a warning: smaller models are as fast as what else the computer does
_MOST_WARNINGS = 3
_SWAPPED_BYTES = 200e6
_FULL_SHARE = 0.97


class CausesOfSlowness(Protocol):
    """Finds out what slows a run down."""

    def __call__(self) -> Iterator[str]:
        """Yield the likely causes as parts of a sentence, the likeliest first."""
        ...


class PaceWatch:
    """Compares the time of steps to that of the run's own fastest ones.

    It takes the medians of windows of 50 steps, or of a minute's steps if these are fewer, so that neither sizes in
    turn nor single slow steps count. A warning needs two slow windows in a row, and another one that the run was fast
    again in between.
    """

    def __init__(self, emit: Callable[[Event], None], causes: CausesOfSlowness) -> None:
        self._emit = emit
        self._causes = causes
        self._num_ignored = 0
        self._window: list[float] = []
        self._usual_seconds = float("inf")
        self._num_slow = 0
        self._is_warned = False
        self._num_warnings = 0

    def after_step(self, view: StepView) -> None:
        """Note the time of a step."""
        if self._num_ignored < _IGNORED_STEPS:
            self._num_ignored += 1
            return
        self._window.append(view.seconds)
        is_long = len(self._window) >= _LEAST_STEPS and sum(self._window) >= _WINDOW_SECONDS
        if len(self._window) >= _WINDOW_STEPS or is_long:
            self._add_window(statistics.median(self._window), view.now.step)
            self._window = []

    def _add_window(self, seconds: float, step: int) -> None:
        is_slow = seconds > max(_SLOWER * self._usual_seconds, self._usual_seconds + _LEAST_SECONDS)
        self._num_slow = self._num_slow + 1 if is_slow else 0
        if seconds < _AS_BEFORE * self._usual_seconds:
            self._is_warned = False
        self._usual_seconds = min(self._usual_seconds, seconds)
        if self._num_slow < 2 or self._is_warned or self._num_warnings == _MOST_WARNINGS:
            return
        self._is_warned = True
        self._num_warnings += 1
        causes = list(self._causes())
        reason = f"Likely: {'; '.join(causes)}." if causes else "No cause was found in memory, swap and load."
        self._emit(
            WarningRaised(
                f"Steps have become slower: {seconds:.3g} s each up to step {step:,}, "
                f"{seconds / self._usual_seconds:.1f} times the {self._usual_seconds:.3g} s of before. {reason}",
                "Close what else uses the card or the memory. If it stays slow, stop, lower the memory (Fit to my "
                "card) and resume.",
            )
        )


class MachineCauses:
    """Looks for the causes on this machine: memory that is swapped, a full card, other programs on the processor."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._swapped = _swapped_bytes()

    def __call__(self) -> Iterator[str]:
        """Yield what is found."""
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
