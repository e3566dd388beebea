"""Asking the driver's tool and torch about the GPUs, each with a limit of time; for a background thread.

A driver that nothing uses (without persistence mode) is loaded for the first question, which takes seconds for each GPU
and begins anew when the tool is stopped: so there is one patient question instead of several hasty ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from modules.system.paths import PROGRAM_ROOT

TOOL_SECONDS = 20.0
TORCH_SECONDS = 60.0
_DRIVER = Path("/proc/driver/nvidia/version")
# Of the driver, of the Jetson boards' drivers, and of Windows' driver as its subsystem for Linux offers it.
_GPU_DEVICES = tuple(map(Path, ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/dxg")))
_IN_A_CHILD = (
    "import json, sys, torch; from modules.system.gpu_tools import read_cards; "
    "print(json.dumps(read_cards(torch, int(sys.argv[1]))))"
)

_unresponsive: set[str] = set()
"""The tools that did not answer within their limit: no call waits for them again in this process."""


class Card(NamedTuple):
    """A GPU as torch reports it. The free bytes are known for the card that was asked for, and 0 for the others."""

    capability: float
    total_bytes: int
    free_bytes: int


def run_tool(command: Sequence[str], *, seconds: float = TOOL_SECONDS) -> str:
    """Return the output of a driver's tool. Raises OSError and `subprocess.SubprocessError`.

    A tool that has not answered within the limit is not run again.
    """
    tool = command[0]
    if tool in _unresponsive:
        raise subprocess.TimeoutExpired(tool, seconds)
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, timeout=seconds, check=True, errors="replace"
        )
    except subprocess.TimeoutExpired:
        _unresponsive.add(tool)
        raise
    return done.stdout


def why_no_answer(command: Sequence[str], error: Exception) -> str:
    """Return in a few words why a tool gave no answer, without a full stop."""
    tool = command[0]
    match error:
        case subprocess.TimeoutExpired():
            return f"{tool} did not answer within {error.timeout:g} seconds"
        case subprocess.CalledProcessError():
            said = (error.stdout or error.stderr or "").strip().splitlines()
            return f"{tool} failed: {said[0].rstrip('.')}" if said else f"{tool} failed with code {error.returncode}"
        case FileNotFoundError():
            return f"{tool} is not installed"
        case OSError():
            return f"{tool} cannot be run: {error.strerror or error}"
        case _:
            return f"the answer of {tool} is not understood"


def has_nvidia_driver() -> bool:
    """Return whether an NVIDIA driver is known to be loaded, which only Linux shows."""
    return _DRIVER.is_file()


def has_no_driver() -> bool:
    """Return whether it is certain that no NVIDIA driver is loaded; only Linux shows it."""
    return sys.platform == "linux" and not any(path.exists() for path in (_DRIVER, *_GPU_DEVICES))


def cards_of_torch(number: int = -1, *, seconds: float = TORCH_SECONDS) -> tuple[Card, ...] | None:
    """Return the GPUs in torch's order, with the free memory of one of them; None if torch does not answer.

    Torch answers in this process if it already uses a GPU here, otherwise in a process of its own, which takes seconds.
    """
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            return read_cards(torch, number)
        command = [sys.executable, "-c", _IN_A_CHILD, str(number)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=True, cwd=PROGRAM_ROOT, errors="replace"
        )
        return tuple(Card(*card) for card in json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, RuntimeError):
        return None


def read_cards(torch: Any, number: int) -> tuple[Card, ...]:
    """Return the GPUs that a torch module finds, with the free memory of GPU `number`. Raises RuntimeError."""
    cards = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        free = int(torch.cuda.mem_get_info(index)[0]) if index == number else 0
        cards.append(Card(facts.major + facts.minor / 10, int(facts.total_memory), free))
    return tuple(cards)
