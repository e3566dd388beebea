"""Devices and dtypes by name, the one function that moves tensors between devices, and their random generators.

A device here is logical. "cuda:1" is itself; "cpu:1" is a second device in the CPU's memory, so that a machine
without a GPU can test every move between a training and an offload device. The device guard
(`modules/memory/guard.py`) tags storages with logical devices, and `move` is where a tensor changes its tag.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch

from modules.system.errors import DarkroomError

_guards: list[MoveGuard] = []  # the active ones, innermost last; empty outside tests and debug mode
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class MoveGuard(Protocol):
    """Observes every move between devices."""

    def retag(self, tensor: torch.Tensor, device: Device) -> torch.Tensor:
        """Return a tensor that was moved, as one of its new device."""
        ...

    def note_pinned(self, tensor: torch.Tensor) -> None:
        """Called with a tensor that `move` can copy without waiting."""
        ...


@dataclass(frozen=True, slots=True)
class Device:
    """A logical device: its name, and the torch device that its tensors are on."""

    name: str

    @property
    def torch(self) -> torch.device:
        """The torch device; every "cpu:n" is the CPU."""
        return _torch_device(self.name)

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


@cache  # asked for each tensor that is moved
def _torch_device(name: str) -> torch.device:
    return torch.device("cpu" if name.split(":")[0] == "cpu" else name)


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


def free_device_bytes(device: Device) -> int | None:
    """Return the free memory of a GPU, in bytes; None for any other device."""
    return int(torch.cuda.mem_get_info(device.torch)[0]) if device.type == "cuda" else None


def move(tensor: torch.Tensor, device: Device, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the tensor on a device, in another dtype where one is given; the same tensor where nothing changes.

    A pinned tensor is copied to a GPU without blocking.
    """
    moved = tensor.to(device.torch, dtype=dtype or tensor.dtype, non_blocking=tensor.is_pinned())
    return _guards[-1].retag(moved, device) if _guards else moved


def are_on(tensors: Collection[torch.Tensor], device: Device) -> list[bool]:
    """Return for each tensor whether it is on a device: `move` would return the very same."""
    if _guards:  # of two devices that are both the CPU a guard knows which
        return [move(tensor, device) is tensor for tensor in tensors]
    wanted = device.torch
    devices = {tensor.device for tensor in tensors}
    matching = {d for d in devices if d.type == wanted.type and wanted.index in (None, d.index)}
    if matching == devices:
        return [True] * len(tensors)
    return [tensor.device in matching for tensor in tensors]


def pin(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    """Return the tensor in page-locked memory if the device is a GPU, so that `move` need not wait for the copy."""
    ready = tensor.pin_memory() if device.type == "cuda" and tensor.device.type == "cpu" else tensor
    if _guards:
        _guards[-1].note_pinned(ready)
    return ready


def move_async(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    """Return a CPU tensor on a device; a GPU copies it from page-locked memory, and the host does not wait for it.

    A copy from other memory makes the host wait until the GPU has done all its work so far.
    """
    return move(pin(tensor, device), device)


def tensor_on(values: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor of plain values on a device, without making the host wait for a GPU, as `torch.tensor` would."""
    made = torch.tensor(values, dtype=dtype)
    return made.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else made.to(device)


class LateRead:
    """Values, of shape (n), on their way from a device: what is enqueued there afterwards is not waited for."""

    def __init__(self, values: torch.Tensor) -> None:
        """Start the copy, on a GPU into page-locked memory."""
        self._values = values
        self._copied: torch.cuda.Event | None = None
        self._read: list[float] | None = None
        if values.device.type == "cuda":
            copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values = copy.copy_(values, non_blocking=True)
            self._copied = torch.cuda.current_stream(values.device).record_event()

    @property
    def is_ready(self) -> bool:
        """Whether nothing is gained by reading the values later: only a GPU copies them in the background."""
        return self._copied is None or self._read is not None

    def wait(self) -> list[float]:
        """Return the values, once the copy is done."""
        if self._read is None:
            if self._copied is not None:
                self._copied.synchronize()
            self._read = self._values.tolist()
        return self._read


def push_guard(guard: MoveGuard) -> None:
    """Let a guard observe every move; undone with `pop_guard`."""
    _guards.append(guard)


def pop_guard() -> None:
    """Undo the newest `push_guard`."""
    _guards.pop()


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


def widest_float(device: torch.device) -> torch.dtype:
    """Return the floating point dtype of a device with the most bits: Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def dtype_of(name: str) -> torch.dtype:
    """Return the torch dtype of a config's name. Raises KeyError for an unknown name."""
    return DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's plain name, as in "bfloat16"."""
    return str(dtype).removeprefix("torch.")


@contextlib.contextmanager
def seeded_global_rng(seed: int, device: Device) -> Iterator[None]:
    """Seed the global generators of the CPU and of `device`; their previous state is restored on exit."""
    kind = "cuda" if device.is_cpu else device.type
    with torch.random.fork_rng(devices=[] if device.is_cpu else [device.torch], device_type=kind):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device.torch):
                torch.cuda.manual_seed(seed)
        elif device.type == "mps":
            torch.mps.manual_seed(seed)
        yield
