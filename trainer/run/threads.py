"""The number of CPU threads of a run: set, kept from the run that is resumed, or measured once per machine.

Another number of threads changes the last bits of a result, and a measurement differs from one moment to the next. So
it is measured once, and again only after a change of what it depends on: the processor, its usable cores, the system or
the version of torch. The choice is in a file of the user's data folder; deleting it lets it be measured again.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from modules.system.atomic import write_text
from modules.system.paths import machine_choices_file
from modules.system.regular_files import read_json_object

_NUM_MEASUREMENTS = 5
_MIN_GAIN = 1.25
"""All cores are chosen if they are at least this many times as fast as one."""
_MAX_ENTRIES = 500


def choose_num_threads(
    wanted: int,
    *,
    device_is_cpu: bool,
    in_window: bool,
    num_processes: int = 1,
) -> int:
    """Return the number of threads: `wanted` if it is not 0, otherwise one, or all free cores if that is faster.

    Small models can be slower with several threads than with one, so a short measurement decides. It is stored, so that
    equal runs on one machine have equally many. With `in_window` one core is left to the window; `num_processes`
    share the machine. A GPU run needs few threads.
    """
    cores = usable_cores()
    most = max(1, (cores - 1 if in_window else cores) // num_processes)
    if wanted:
        return wanted
    if not device_is_cpu:
        return min(most, 4)
    if most == 1:
        return 1

    def measure() -> int:
        return most if _seconds(1) > _MIN_GAIN * _seconds(most) else 1

    return measure_once(most, measure)


def measure_once(most: int, measure: Callable[[], int], *, file: Path | None = None) -> int:
    """Return the stored number of threads of this machine, of at most `most`, or measure and store it.

    If another process has stored one in the meantime, that one is returned, so that both choose the same. A file that
    cannot be read or written is ignored.
    """
    file = file or machine_choices_file()
    key = f"CPU threads | 1 or {most} | {machine_identity()}"
    if (stored := _stored_number(file, key)) is not None:
        return stored
    measured = measure()
    if (stored := _stored_number(file, key)) is not None:
        return stored
    entries = {name: value for name, value in (read_json_object(file) or {}).items() if name != key}
    newest = dict(list({**entries, key: measured}.items())[-_MAX_ENTRIES:])
    with suppress(OSError):
        write_text(file, json.dumps(newest, indent=2) + "\n")
    return measured


@functools.cache
def machine_identity() -> str:
    """Return the facts that the choice depends on: the CPU's model, its usable cores, the system, torch's version."""
    return f"{cpu_model()} | {usable_cores()} cores | {sys.platform} | torch {_torch_version()}"


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _seconds(num_threads: int) -> float:
    """Return the seconds that a convolution of a small UNet's size takes with `num_threads` threads.

    The shortest of several: the decision is for the machine, not for what else it does at the moment.
    """
    former = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        pixels, weight = torch.ones(4, 64, 48, 48), torch.ones(64, 64, 3, 3)
        torch.nn.functional.conv2d(pixels, weight, padding=1)
        times = []
        for _ in range(_NUM_MEASUREMENTS):
            start = time.perf_counter()
            for _ in range(4):
                torch.nn.functional.conv2d(pixels, weight, padding=1)
            times.append(time.perf_counter() - start)
        return min(times)
    finally:
        torch.set_num_threads(former)


def cpu_model() -> str:
    """Return the name of the processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()


def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _stored_number(file: Path, key: str) -> int | None:
    """Return the stored number under a key; None for a missing one, or a value of another type."""
    number = (read_json_object(file) or {}).get(key)
    return number if type(number) is int and number > 0 else None  # in Python a bool is an int as well
