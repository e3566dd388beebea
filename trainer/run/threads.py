"""The number of CPU threads of a run: set, kept from the run that is resumed, or measured once per machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from modules.system.machine_choices import machine_choice, usable_cores

_MEASUREMENTS = 5
_WORTH_IT = 1.25


def choose_num_threads(
    wanted: int,
    *,
    device_is_cpu: bool,
    beside_window: bool,
    clock: Callable[[], float] = time.perf_counter,
    num_processes: int = 1,
) -> int:
    """Return the number of threads: `wanted` if it is not 0, otherwise one, or all free cores if that is faster.

    Small models can be slower with several threads than with one, so a short measurement decides. Another number of
    threads changes the last bits of a result, so the decision is stored: equal runs on one machine have equally many.
    With `beside_window` one core is left to the window; `num_processes` share the machine. A GPU run needs few threads.
    """
    cores = usable_cores()
    most = max(1, (cores - 1 if beside_window else cores) // num_processes)
    if wanted:
        return wanted
    if not device_is_cpu:
        return min(most, 4)
    if most == 1:
        return 1

    def measured() -> int:
        return most if _seconds(1, clock) > _WORTH_IT * _seconds(most, clock) else 1

    return machine_choice("CPU threads", f"1 or {most}", measured, kind=int)


def _seconds(num_threads: int, clock: Callable[[], float]) -> float:
    """Return the time of a convolution as large as those of a small UNet, with `num_threads` threads.

    The shortest of several: the decision is for the machine, not for what else it does at the moment.
    """
    former = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        pixels, weight = torch.ones(4, 64, 48, 48), torch.ones(64, 64, 3, 3)
        torch.nn.functional.conv2d(pixels, weight, padding=1)
        times = []
        for _ in range(_MEASUREMENTS):
            start = clock()
            for _ in range(4):
                torch.nn.functional.conv2d(pixels, weight, padding=1)
            times.append(clock() - start)
        return min(times)
    finally:
        torch.set_num_threads(former)
