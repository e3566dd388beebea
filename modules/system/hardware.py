"""The compute devices of this machine, detected without torch: only certain facts."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import subprocess
import sys
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
        found = tuple(float(line) for line in done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(found) if visible is None else min(len(found), _num_named(visible))
    if len(set(found)) > 1 and (visible is not None or os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"):
        return (0.0,) * count  # CUDA orders by speed, the driver's tool by PCI bus
    return found[:count]


def _num_named(visible: str) -> int:
    """Return the number of GPUs that CUDA_VISIBLE_DEVICES names. The first name that is none ends it, such as -1."""
    names = [name.strip() for name in visible.split(",")]
    return next((n for n, name in enumerate(names) if not name or name.startswith("-")), len(names))
