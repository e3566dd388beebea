"""Devices by name, and the one function that moves tensors between them.

A device here is logical. "cuda:1" is itself; "cpu:1" is a second device in the CPU's memory, so that a machine
without a GPU can test every move between a training and an offload device. The device guard
(`modules/memory/guard.py`) tags storages with logical devices, and `move` is where a tensor changes its tag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from modules.system.errors import DarkroomError

Retag = Callable[[torch.Tensor, "Device"], torch.Tensor]
_retag: list[Retag] = []  # the active guard's, innermost last; empty outside tests and debug mode


@dataclass(frozen=True, slots=True)
class Device:
    """A logical device: its name, and the torch device that its tensors are on."""

    name: str

    @property
    def torch(self) -> torch.device:
        """The torch device; every "cpu:n" is the CPU."""
        return torch.device("cpu") if self.is_cpu else torch.device(self.name)

    @property
    def is_cpu(self) -> bool:
        """Whether the device's memory is the CPU's."""
        return self.name.split(":")[0] == "cpu"

    @property
    def type(self) -> str:
        """The device type, as in "cuda"."""
        return self.torch.type

    def __str__(self) -> str:
        return self.name


CPU = Device("cpu")


def resolve_device(name: str) -> Device:
    """Return the device of a config's name; "auto" is the first GPU, else the CPU.

    Raises DarkroomError for a device this machine does not have.
    """
    name = name.strip().lower()
    if name in ("", "auto"):
        name = _best()
    try:
        device = Device(name)
        kind = device.type
    except RuntimeError as error:
        raise DarkroomError(f"{name!r} is not a valid device.", advice="Use auto, cpu, cuda, cuda:1 or mps.") from error
    if not _is_there(device, kind):
        raise DarkroomError(
            f"This machine has no device {name!r} that torch can use.",
            advice="Set the training device to auto, or install the torch build for your GPU.",
        )
    return device


def move(tensor: torch.Tensor, device: Device, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the tensor on a device, in another dtype where one is given; the same tensor where nothing changes.

    A pinned tensor is copied to a GPU without blocking.
    """
    moved = tensor.to(device.torch, dtype=dtype or tensor.dtype, non_blocking=tensor.is_pinned())
    return _retag[-1](moved, device) if _retag else moved


def pinned(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    """Return the tensor in page-locked memory if the device is a GPU, so that `move` need not wait for the copy."""
    return tensor.pin_memory() if device.type == "cuda" and tensor.device.type == "cpu" else tensor


def push_retag(retag: Retag) -> None:
    """Call `retag` on every move, for a device guard; undone with `pop_retag`."""
    _retag.append(retag)


def pop_retag() -> None:
    """Undo the newest `push_retag`."""
    _retag.pop()


def _best() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _is_there(device: Device, kind: str) -> bool:
    match kind:
        case "cpu":
            return True
        case "cuda":
            return torch.cuda.is_available() and (device.torch.index or 0) < torch.cuda.device_count()
        case "mps":
            return torch.backends.mps.is_available()
        case _:
            return False
