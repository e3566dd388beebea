"""Reporting the progress of downloads, and the memory in use.

Memory is read from counters of the host and of torch's allocator in this process: reading them waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from modules.system.devices import Device
from modules.system.hardware import free_memory, process_memory, total_memory
from trainer.commands import CommandDesk
from trainer.events import DownloadProgress, Event, PhaseChanged, RunFailed, RunFinished
from trainer.machine_events import MemoryMeasured

_SECONDS_BETWEEN_EVENTS = 0.25
_SECONDS_BETWEEN_MEASUREMENTS = 2.0
_MIN_SHARE = 0.01  # of a download until the time left is estimated: the first, small files do not show its speed


class DownloadMeter:
    """Called from the download threads with the bytes done and in total; raises StopRequested to end them."""

    def __init__(self, *, emit: Callable[[Event], None], desk: CommandDesk, clock: Callable[[], float]) -> None:
        self._emit = emit
        self._desk = desk
        self._clock = clock
        self._started: tuple[float, float] | None = None
        self._last_report = 0.0

    def __call__(self, done_bytes: float, total_bytes: float) -> None:
        """Report the progress, a few times a second."""
        self._desk.check()
        if not total_bytes:
            return  # it is not known yet
        now = self._clock()
        if self._started is None:
            self._started = (now, done_bytes)
        if now - self._last_report < _SECONDS_BETWEEN_EVENTS and done_bytes < total_bytes:
            return
        self._last_report = now
        seconds, fetched = now - self._started[0], done_bytes - self._started[1]
        is_enough = fetched > 0 and fetched >= total_bytes * _MIN_SHARE
        seconds_left = (total_bytes - done_bytes) * seconds / fetched if is_enough else None
        self._emit(DownloadProgress(done_bytes / 1e6, total_bytes / 1e6, seconds_left))


class MemoryMeter:
    """A listener that passes events on, and adds one with the memory in use every two seconds.

    It is also added after each change of the phase: the phases hold different parts in memory.
    """

    def __init__(self, listener: Callable[[Event], None], clock: Callable[[], float]) -> None:
        self._listener = listener
        self._clock = clock
        self._last: float | None = None
        self.card: torch.device | None = None
        """The card to measure, once it is known."""

    def watch(self, device: Device) -> None:
        """Set the training device; its memory is measured separately if it is a CUDA device."""
        self.card = device.torch if device.type == "cuda" else None

    def emit(self, event: Event) -> None:
        """Pass an event on, and measure if it is time."""
        self._listener(event)
        if isinstance(event, RunFinished | RunFailed):
            return  # the last event of a run stays its last
        now = self._clock()
        if isinstance(event, PhaseChanged) or self._last is None or now - self._last >= _SECONDS_BETWEEN_MEASUREMENTS:
            self._last = now
            self._listener(measure_memory(self.card))


def measure_memory(card: torch.device | None) -> MemoryMeasured:
    """Return the memory in use now."""
    total_bytes = total_memory()
    used = MemoryMeasured(process_memory(), total_bytes - free_memory(), total_bytes)
    if card is None:
        return used
    return MemoryMeasured(
        used.process,
        used.machine_used,
        used.machine_total,
        torch.cuda.memory_reserved(card),
        torch.cuda.max_memory_reserved(card),
        torch.cuda.get_device_properties(card).total_memory,
    )
