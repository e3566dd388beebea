"""Timing two implementations of the same work alternately, so that changes of the machine's speed affect both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from modules.system.devices import Device


@dataclass(frozen=True, slots=True)
class Ratio:
    """The speed of the engine relative to the bare code: 1 is equally fast, 0.9 takes a ninth longer; medians."""

    ratio: float
    lowest: float
    highest: float
    ours_seconds: float
    bare_seconds: float
    rounds: int


def paired(
    ours: Callable[[], None], bare: Callable[[], None], *, rounds: int, device: Device, in_cpu_time: bool = False
) -> Ratio:
    """Run both alternately, `rounds` times after a warm-up round, and compare them pair by pair.

    With `in_cpu_time` the time of this process's threads on the CPU is compared, not that of the clock: with one thread
    for computing, other programs hardly change it.
    """
    ours()
    bare()
    pairs = []
    for index in range(rounds):
        first, second = (ours, bare) if index % 2 == 0 else (bare, ours)
        times = {work: _seconds(work, device, in_cpu_time=in_cpu_time) for work in (first, second)}
        pairs.append((times[ours], times[bare]))
    ratios = [b / o for o, b in pairs]
    return Ratio(
        ratio=statistics.median(ratios),
        lowest=min(ratios),
        highest=max(ratios),
        ours_seconds=statistics.median(o for o, _ in pairs),
        bare_seconds=statistics.median(b for _, b in pairs),
        rounds=rounds,
    )


def _seconds(work: Callable[[], None], device: Device, *, in_cpu_time: bool) -> float:
    clock = time.process_time if in_cpu_time else time.perf_counter
    start = clock()
    work()
    wait_for(device)
    return clock() - start


def wait_for(device: Device) -> None:
    """Wait until a device has finished its work; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device.torch)
