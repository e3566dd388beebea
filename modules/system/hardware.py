"""The compute devices of this machine, as far as the system reports for certain. Torch is not imported."""

from __future__ import annotations

import csv
import functools
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_QUERY = ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
_QUERY_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """The known hardware of this machine. `capabilities` are the compute capabilities of its NVIDIA GPUs, in order;
    None where the driver's tool is missing or does not answer, which proves nothing.
    """

    torch_build: str
    is_mac: bool
    capabilities: tuple[float, ...] | None

    @property
    def lacks_cuda(self) -> bool:
        """Whether it is certain that no run can use a GPU as "cuda"."""
        return self.is_mac or self.torch_build == "cpu"

    def kind_of(self, device: str) -> str:
        """Return the type of device that a config's name means here ("cpu", "cuda", "mps"), "auto" resolved.

        Empty where that is not certain.
        """
        named = device.strip().lower().partition(":")[0]
        if named not in ("", "auto"):
            return named
        if self.is_mac:
            return ""
        if self.lacks_cuda:
            return "cpu"
        return "cuda" if self.capabilities else ""

    def capability_of(self, device: str) -> float:
        """Return the compute capability of a GPU, 0 where it is unknown."""
        capabilities = self.capabilities or ()
        index = int(device.partition(":")[2] or 0)
        return capabilities[index] if index < len(capabilities) else 0.0


@functools.cache
def here() -> Hardware:
    """Return the hardware of this machine; detected once per process."""
    build = _torch_build()
    is_mac = sys.platform == "darwin"
    can_have_nvidia = not is_mac and build != "cpu" and not build.startswith("rocm")
    return Hardware(build, is_mac, _capabilities() if can_have_nvidia else None)


def free_memory() -> int:
    """Return the bytes of the computer's memory that programs can still use."""
    import psutil

    return int(psutil.virtual_memory().available)


def _torch_build() -> str:
    """Return the platform torch was built for, if its version contains it, as in "cpu" or "cu128"."""
    try:
        return importlib.metadata.version("torch").partition("+")[2]
    except importlib.metadata.PackageNotFoundError:
        return ""


def _capabilities() -> tuple[float, ...] | None:
    """Return the capabilities of the GPUs in CUDA's order, 0 for each where the order is not certain."""
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_QUERY_SECONDS, check=True)
        capabilities = tuple(float(line) for line in done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(capabilities) if visible is None else min(len(capabilities), _count_named(visible))
    if len(set(capabilities)) > 1 and (visible is not None or os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"):
        return (0.0,) * count  # CUDA orders by speed, the driver's tool by PCI bus
    return capabilities[:count]


def _count_named(visible: str) -> int:
    """Return the number of GPUs that CUDA_VISIBLE_DEVICES names. The first invalid name ends it, such as -1."""
    names = [name.strip() for name in visible.split(",")]
    return next((n for n, name in enumerate(names) if not name or name.startswith("-")), len(names))


# Total and free GPU memory, read from the driver's tool. Never raises.
#
# nvidia-smi numbers GPUs by PCI bus, CUDA by speed unless CUDA_DEVICE_ORDER is set. With identical GPUs, or only one,
# both orders agree.
_NVIDIA = ("nvidia-smi", "--query-gpu=index,uuid,memory.total,memory.free", "--format=csv,noheader,nounits")
_AMD = ("rocm-smi", "--showmeminfo", "vram", "--csv")
_TIMEOUT_SECONDS = 2.0
_MEBIBYTE, _GIBIBYTE = 1 << 20, 1 << 30

RunTool = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """A GPU's total and free memory, in bytes."""

    total_bytes: int
    free_bytes: int

    @property
    def nominal_gb(self) -> int:
        """The gigabytes that a card of this size is sold with: the driver reports a few megabytes less."""
        return round(self.total_bytes / _GIBIBYTE)


def gpu_memory(device: str, *, run_tool: RunTool | None = None) -> GpuMemory | None:
    """Return the memory of the GPU that a config's device names: "auto", "cuda", "cuda:1".

    None for any other device, where there is no GPU, and where no tool reports it. `run_tool(command)` runs a tool and
    returns its output; OSError, ValueError and `subprocess.SubprocessError` count as no answer.
    """
    name = device.strip().lower() or "auto"
    if name != "auto" and name.split(":")[0] != "cuda":
        return None
    run_tool = run_tool or _run
    try:
        number = int(name.split(":")[1]) if ":" in name else 0
        return _nvidia(run_tool, number) or _amd(run_tool, number)
    except (ValueError, IndexError):
        return None


def _nvidia(run_tool: RunTool, number: int) -> GpuMemory | None:
    rows = [row for row in _rows(run_tool, _NVIDIA) if len(row) == 4]
    wanted = _visible(number, [(row[0], row[1]) for row in rows])
    row = next((r for r in rows if r[0] == wanted), None)
    if row is None:
        return None
    return GpuMemory(int(row[2]) * _MEBIBYTE, int(row[3]) * _MEBIBYTE)


def _amd(run_tool: RunTool, number: int) -> GpuMemory | None:
    row = next((r for r in _rows(run_tool, _AMD) if len(r) >= 3 and r[0] == f"card{number}"), None)
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


def _rows(run_tool: RunTool, command: Sequence[str]) -> list[list[str]]:
    try:
        text = run_tool(command)
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in row] for row in csv.reader(text.splitlines())]


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(
        list(command), capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True, errors="replace"
    )
    return done.stdout
