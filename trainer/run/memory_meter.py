"""Reporting the memory in use beside a run's other events, cheaply: counters of the host, never of the device.

The card's figures are those of torch's allocator in this process; reading them waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import psutil
import torch

from modules.system.devices import Device
from trainer.events import Event, MemoryMeasured, PhaseChanged, RunFailed, RunFinished

_SECONDS_BETWEEN = 2.0


class MemoryMeter:
    """A listener that passes events on, and follows one of them every two seconds by the memory in use.

    A change of the phase is always followed by it: the phases hold different parts in memory.
    """

    def __init__(self, listener: Callable[[Event], None], clock: Callable[[], float]) -> None:
        self._listener = listener
        self._clock = clock
        self._process = psutil.Process()
        self._last: float | None = None
        self.card: torch.device | None = None
        """The card to measure, once it is known."""

    def watch(self, device: Device) -> None:
        """Set the training device; only a CUDA device has figures of its own."""
        self.card = device.torch if device.type == "cuda" else None

    def emit(self, event: Event) -> None:
        """Pass an event on, and measure if it is time."""
        self._listener(event)
        if isinstance(event, RunFinished | RunFailed):
            return  # the last event of a run stays its last
        now = self._clock()
        if isinstance(event, PhaseChanged) or self._last is None or now - self._last >= _SECONDS_BETWEEN:
            self._last = now
            self._listener(measured(self._process, self.card))


def measured(process: psutil.Process, card: torch.device | None) -> MemoryMeasured:
    """Return the memory in use now."""
    machine = psutil.virtual_memory()
    used = MemoryMeasured(process.memory_info().rss, machine.total - machine.available, machine.total)
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
