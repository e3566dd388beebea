"""The compute devices of this machine, as far as the system reports for certain. Torch is not imported here."""

from __future__ import annotations

import csv
import functools
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from modules.system.gpu_tools import cards_of_torch, has_no_driver, has_nvidia_driver, run_tool, why_no_answer

_QUERY = ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")


@dataclass(frozen=True, slots=True)
class Hardware:
    """The known hardware of this machine.

    `capabilities` are the compute capabilities of its GPUs in torch's order, 0 for one of AMD; None where neither the
    driver's tool nor torch answers, which proves nothing. `why_unknown` then states why, if there should be a GPU.
    `has_no_driver`: torch was built for GPUs of NVIDIA, and no driver of theirs is loaded.
    """

    torch_build: str
    is_mac: bool
    capabilities: tuple[float, ...] | None
    why_unknown: str = ""
    has_no_driver: bool = False

    @property
    def is_rocm(self) -> bool:
        """Whether torch was built for GPUs of AMD, which it calls "cuda", too."""
        return self.torch_build.startswith("rocm")

    @property
    def gpu_name(self) -> str:
        """The kind of GPU that the installed torch uses, for messages."""
        return "AMD GPU" if self.is_rocm else "NVIDIA GPU"

    @property
    def lacks_cuda(self) -> bool:
        """Whether it is certain that no run can use a GPU as "cuda"."""
        return self.is_mac or self.torch_build == "cpu" or self.has_no_driver

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
    """Return the hardware of this machine; detected once per process. That may take a while: see `gpu_tools`."""
    build = torch_build()
    is_mac = sys.platform == "darwin"
    if is_mac or build == "cpu":
        return Hardware(build, is_mac, None)
    is_rocm = build.startswith("rocm")
    capabilities, why_unknown = _ask(is_rocm=is_rocm)
    is_unknown = capabilities is None and not why_unknown
    return Hardware(build, is_mac, capabilities, why_unknown, is_unknown and not is_rocm and has_no_driver())


def free_memory() -> int:
    """Return the bytes of the computer's memory that programs can still use."""
    import psutil

    try:
        return int(psutil.virtual_memory().available)
    except OSError:  # Linux without /proc
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def total_memory() -> int:
    """Return the bytes of the computer's memory."""
    import psutil

    try:
        return int(psutil.virtual_memory().total)
    except OSError:  # Linux without /proc
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def process_memory() -> int:
    """Return the bytes of the computer's memory that this process holds; 0 where the system does not report it."""
    import psutil

    try:
        return int(psutil.Process().memory_info().rss)
    except (OSError, psutil.Error):  # Linux without /proc
        return 0


def num_cores() -> int:
    """Return the number of the processor's cores that this process may use, without the second threads of cores."""
    import psutil

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or usable, usable))


def torch_build() -> str:
    """Return the platform torch was built for, if its version contains it, as in "cpu" or "cu128"."""
    try:
        return importlib.metadata.version("torch").partition("+")[2]
    except importlib.metadata.PackageNotFoundError:
        return ""


def _ask(*, is_rocm: bool) -> tuple[tuple[float, ...] | None, str]:
    """Return the capabilities of the GPUs, and why they are not known although there should be one.

    Torch is asked in a process of its own where no tool reports what torch uses (AMD), or where the tool fails.
    """
    why = "torch finds no AMD GPU"
    if not is_rocm:
        try:
            return _in_order_of_cuda(tuple(float(line) for line in run_tool(_QUERY).split())), ""
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and not has_nvidia_driver():
                return None, ""
            why = why_no_answer(_QUERY, error)
    cards = cards_of_torch()
    if cards:
        return tuple(0.0 if is_rocm else card.capability for card in cards), ""
    return (None if cards is None else ()), why


def _in_order_of_cuda(capabilities: tuple[float, ...]) -> tuple[float, ...]:
    """Return the capabilities that the driver's tool reports in CUDA's order, 0 for each where it is not certain."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(capabilities) if visible is None else min(len(capabilities), _count_named(visible))
    if len(set(capabilities)) > 1 and (visible is not None or os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"):
        return (0.0,) * count  # CUDA orders by speed, the driver's tool by PCI bus
    return capabilities[:count]


def _count_named(visible: str) -> int:
    """Return the number of GPUs that CUDA_VISIBLE_DEVICES names. The first invalid name ends it, such as -1."""
    names = [name.strip() for name in visible.split(",")]
    return next((n for n, name in enumerate(names) if not name or name.startswith("-")), len(names))


# Total and free GPU memory. Never raises.
#
# nvidia-smi numbers GPUs by PCI bus, CUDA by speed unless CUDA_DEVICE_ORDER is set. With identical GPUs, or only one,
# both orders agree.
_NVIDIA = ("nvidia-smi", "--query-gpu=index,uuid,memory.total,memory.free", "--format=csv,noheader,nounits")
_AMD = ("rocm-smi", "--showmeminfo", "vram", "--csv")
_HIDES_AMD = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
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


def gpu_memory(device: str, *, ask: RunTool = run_tool) -> GpuMemory | None:
    """Return the memory of the GPU that a config's device names: "auto", "cuda", "cuda:1".

    None for any other device, where there is no GPU, and where neither a tool nor torch reports it. `ask(command)` runs
    a tool and returns its output; OSError, ValueError and `subprocess.SubprocessError` count as no answer.
    """
    name = device.strip().lower() or "auto"
    if name != "auto" and name.split(":")[0] != "cuda":
        return None
    try:
        number = int(name.split(":")[1]) if ":" in name else 0
        return _nvidia(ask, number) or _amd(ask, number) or _torch(number)
    except (ValueError, IndexError):
        return None


def _nvidia(ask: RunTool, number: int) -> GpuMemory | None:
    rows = [row for row in _rows(ask, _NVIDIA) if len(row) == 4]
    wanted = _visible(number, [(row[0], row[1]) for row in rows])
    row = next((r for r in rows if r[0] == wanted and r[2].isdecimal() and r[3].isdecimal()), None)  # or "[N/A]"
    if row is None:
        return None
    return GpuMemory(int(row[2]) * _MEBIBYTE, int(row[3]) * _MEBIBYTE)


def _amd(ask: RunTool, number: int) -> GpuMemory | None:
    if any(name in os.environ for name in _HIDES_AMD):
        return None  # the tool counts hidden GPUs; torch does not
    row = next((r for r in _rows(ask, _AMD) if len(r) >= 3 and r[0] == f"card{number}"), None)
    if row is None:
        return None
    total, used = int(row[1]), int(row[2])
    return GpuMemory(total, max(0, total - used))


def _torch(number: int) -> GpuMemory | None:
    """Return the GPUs that torch reports, if it is known that there are some which no tool has reported."""
    if not 0 <= number < len(here().capabilities or ()):
        return None
    cards = cards_of_torch(number) or ()
    return GpuMemory(cards[number].total_bytes, cards[number].free_bytes) if number < len(cards) else None


def _visible(number: int, cards: list[tuple[str, str]]) -> str:
    """Return the driver's index of the GPU that CUDA calls `number`; CUDA_VISIBLE_DEVICES may hide some."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(number)
    names = [n.strip() for n in visible.split(",")]
    name = names[number] if number < len(names) else ""
    return next((index for index, uuid in cards if name and (name == index or uuid.startswith(name))), "")


def _rows(ask: RunTool, command: Sequence[str]) -> list[list[str]]:
    try:
        text = ask(command)
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in row] for row in csv.reader(text.splitlines())]
