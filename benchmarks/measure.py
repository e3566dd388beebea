"""Times two implementations of the same work alternately, so that changes of the machine's speed affect both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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


def compare(
    ours: Callable[[], None], bare: Callable[[], None], *, rounds: int, device: Device, in_cpu_time: bool = False
) -> Ratio:
    """Run both alternately, `rounds` times after a warm-up round, and compare them pair by pair.

    With `in_cpu_time` the CPU time of this process is compared instead of the time on the clock: other programs hardly
    change it if one thread computes.
    """
    return compare_all([ours], bare, rounds=rounds, device=device, in_cpu_time=in_cpu_time)[0]


def compare_all(
    ours: Sequence[Callable[[], None]],
    bare: Callable[[], None],
    *,
    rounds: int,
    device: Device,
    in_cpu_time: bool = False,
) -> list[Ratio]:
    """Run several implementations and the bare one in turns, and compare each with the bare one in the same round."""
    works = [*ours, bare]
    for work in works:
        work()
    times = []
    for index in range(rounds):
        order = range(len(works)) if index % 2 == 0 else reversed(range(len(works)))
        seconds = {number: _seconds(works[number], device, in_cpu_time=in_cpu_time) for number in order}
        times.append([seconds[number] for number in range(len(works))])
    return [_ratio([t[number] for t in times], [t[-1] for t in times]) for number in range(len(ours))]


def twice(ratio: Ratio) -> Ratio:
    """Return the ratio for twice the work in the same time."""
    return replace(ratio, ratio=2 * ratio.ratio, lowest=2 * ratio.lowest, highest=2 * ratio.highest)


def _ratio(ours: Sequence[float], bare: Sequence[float]) -> Ratio:
    ratios = [b / o for o, b in zip(ours, bare, strict=True)]
    return Ratio(
        ratio=statistics.median(ratios),
        lowest=min(ratios),
        highest=max(ratios),
        ours_seconds=statistics.median(ours),
        bare_seconds=statistics.median(bare),
        rounds=len(ratios),
    )


def _seconds(work: Callable[[], None], device: Device, *, in_cpu_time: bool) -> float:
    clock = time.process_time if in_cpu_time else time.perf_counter
    start = clock()
    work()
    wait_for(device)
    return clock() - start


def median_seconds(work: Callable[[], object], device: Device, *, rounds: int) -> float:
    """Return the median time of a piece of work on a device, after one round that does not count."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        work()
        wait_for(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def wait_for(device: Device) -> None:
    """Wait until a device has finished its work; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device.torch)
