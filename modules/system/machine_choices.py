"""Choices that were measured on this machine, kept so that equal runs choose the same.

A measurement differs from one moment to the next, and what is chosen by it, such as the number of threads, changes the
last bits of a result. So each is measured once, and again only where something has changed that it depends on: the
processor, the GPU, the version of torch, or the workload. The file is in the user's data folder; deleting it lets
everything be measured again.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from modules.system.atomic import write_text
from modules.system.paths import machine_choices_file

_MAX_ENTRIES = 500
_Choice = TypeVar("_Choice", bool, int, str)


def machine_choice(
    name: str,
    workload: str,
    measure: Callable[[], _Choice],
    *,
    kind: type[_Choice],
    machine: str = "",
    file: Path | None = None,
) -> _Choice:
    """Return the stored choice of this machine, or measure and store it.

    `name` is what is chosen ("CPU threads"), `workload` what else the choice depends on, such as the
    model's family and the size of a batch, as text. `machine` is `machine_identity()` unless the caller adds to it, as
    with the name of a GPU. `kind` is the type of the choice: a stored value of another type is measured again. If
    another process has stored a choice in the meantime, that one is returned, so that both choose the same. A file that
    cannot be read or written is ignored.
    """
    file = file or machine_choices_file()
    key = " | ".join((name, workload, machine or machine_identity()))
    stored = _read(file).get(key)
    if type(stored) is kind:
        return stored
    measured = measure()
    entries = _read(file)
    if type(now_stored := entries.get(key)) is kind:
        return now_stored
    entries.pop(key, None)
    newest = dict(list({**entries, key: measured}.items())[-_MAX_ENTRIES:])
    with suppress(OSError):
        write_text(file, json.dumps(newest, indent=2) + "\n")
    return measured


@functools.cache
def machine_identity() -> str:
    """Return the facts that choices about the CPU depend on: its model, its usable cores, the system and the version of
    torch.
    """
    return f"{_cpu_model()} | {usable_cores()} cores | {sys.platform} | torch {_torch_version()}"


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
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


def _read(file: Path) -> dict[str, Any]:
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}
