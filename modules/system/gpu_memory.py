"""Total and free GPU memory, read from the driver's own tool. Never raises.

nvidia-smi numbers GPUs by PCI bus, CUDA by speed unless CUDA_DEVICE_ORDER is set. With identical GPUs, or only one,
both orders agree.
"""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_NVIDIA = ("nvidia-smi", "--query-gpu=index,uuid,memory.total,memory.free", "--format=csv,noheader,nounits")
_AMD = ("rocm-smi", "--showmeminfo", "vram", "--csv")
_TIMEOUT_SECONDS = 2.0
_MEBIBYTE = 1 << 20

Ask = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """A GPU's total and free memory, in bytes."""

    total_bytes: int
    free_bytes: int


def gpu_memory(device: str, *, ask: Ask | None = None) -> GpuMemory | None:
    """Return the memory of the GPU that a config's device names: "auto", "cuda", "cuda:1".

    None for any other device, where there is no GPU, and where no tool reports it. `ask(command)` runs a tool and
    returns its output; OSError, ValueError and `subprocess.SubprocessError` count as no answer.
    """
    name = device.strip().lower() or "auto"
    if name != "auto" and name.split(":")[0] != "cuda":
        return None
    ask = ask or _run
    try:
        number = int(name.split(":")[1]) if ":" in name else 0
        return _nvidia(ask, number) or _amd(ask, number)
    except (ValueError, IndexError):
        return None


def _nvidia(ask: Ask, number: int) -> GpuMemory | None:
    rows = [row for row in _rows(ask, _NVIDIA) if len(row) == 4]
    wanted = _visible(number, [(row[0], row[1]) for row in rows])
    row = next((r for r in rows if r[0] == wanted), None)
    if row is None:
        return None
    return GpuMemory(int(row[2]) * _MEBIBYTE, int(row[3]) * _MEBIBYTE)


def _amd(ask: Ask, number: int) -> GpuMemory | None:
    row = next((r for r in _rows(ask, _AMD) if len(r) >= 3 and r[0] == f"card{number}"), None)
    if row is None:
        return None
    total, used = int(row[1]), int(row[2])
    return GpuMemory(total, max(0, total - used))


def _visible(number: int, cards: list[tuple[str, str]]) -> str:
    """Return the driver's index of the GPU that CUDA calls `number`; CUDA_VISIBLE_DEVICES may hide some."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(number)
    names = [n.strip() for n in visible.split(",")]
    name = names[number] if number < len(names) else ""
    return next((index for index, uuid in cards if name and (name == index or uuid.startswith(name))), "")


def _rows(ask: Ask, command: Sequence[str]) -> list[list[str]]:
    try:
        text = ask(command)
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in row] for row in csv.reader(text.splitlines())]


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(
        list(command), capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True, errors="replace"
    )
    return done.stdout
