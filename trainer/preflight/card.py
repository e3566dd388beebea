"""The size of a card: as text, and what is free on the device that a config trains on. Torch-free."""

from __future__ import annotations

import re

from modules.config.schema import Config
from modules.system import hardware
from modules.system.hardware import free_memory, gpu_memory

_UNITS = {"": 1e9, "gb": 1e9, "g": 1e9, "gib": 1 << 30, "mb": 1e6, "mib": 1 << 20}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def size_of(text: str) -> int | None:
    """Return the bytes of a size such as "8GB" or "8"; None for anything else."""
    match = _SIZE.fullmatch(text.strip().lower())
    size = float(match[1]) * _UNITS[match[2]] if match is not None and match[2] in _UNITS else 0.0
    return round(size) or None


def free_here(config: Config) -> int | None:
    """Return the free bytes of the device that a config trains on: its GPU, or the computer's memory on a CPU.

    None for a GPU whose memory no tool reports.
    """
    gpu = gpu_memory(config.general.train_device)
    if gpu is not None:
        return gpu.free_bytes
    is_shared = hardware.here().kind_of(config.general.train_device) in ("cpu", "mps")
    return free_memory() if is_shared else None
