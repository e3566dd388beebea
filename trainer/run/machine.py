"""The devices and the precision of a run, its processes, and the guard that checks devices in debug mode."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from modules.config.sections.general import General
from modules.memory.guard import DeviceGuard
from modules.system.allocator import FIXED_SEGMENTS, fix_segments, grows_segments
from modules.system.devices import Device, free_device_bytes, resolve_device
from modules.system.errors import DarkroomError
from modules.system.hardware import free_memory
from modules.system.problem import count
from modules.system.ranks import Rank
from trainer.ranks import ALONE, Ranks
from trainer.step.precision import Precision

_SPILLS = sys.platform == "win32"
"""Whether NVIDIA's driver uses the computer's memory when the GPU's is full, instead of reporting an error."""

logger = logging.getLogger("darkroom.run")


@dataclass(frozen=True, eq=False)
class Machine:
    """The devices and the precision of a run, and its processes.

    `assumed_free_bytes` replaces the free memory of the training device where a run adapts to it.
    """

    train_device: Device
    temp_device: Device
    precision: Precision
    guard: DeviceGuard | None
    ranks: Ranks = ALONE
    assumed_free_bytes: int | None = None

    @property
    def free_device_bytes(self) -> int | None:
        """The free memory of a GPU in bytes, or the assumed one; None for any other device."""
        free_bytes = free_device_bytes(self.train_device)
        return free_bytes if free_bytes is None or self.assumed_free_bytes is None else self.assumed_free_bytes

    def free_now(self) -> int | None:
        """Return the bytes of the training device that can be allocated at this moment; None if they are not known.

        On a GPU they contain what torch's allocator holds and nothing uses.
        """
        if self.train_device.is_cpu:
            return free_memory()
        free_bytes = free_device_bytes(self.train_device)
        if free_bytes is None:
            return None
        used = torch.cuda.memory_allocated(self.train_device.torch)
        if self.assumed_free_bytes is not None:
            return max(0, self.assumed_free_bytes - used)
        return free_bytes + torch.cuda.memory_reserved(self.train_device.torch) - used


def machine_of(
    general: General,
    precision: str,
    *,
    autocast_cache: bool = True,
    steps_autocast: bool = True,
    ranks: Ranks = ALONE,
    device_indexes: str = "",
) -> Machine:
    """Return the devices and the precision of a run. Raises DarkroomError for a device that is not available.

    Each of several processes gets a different GPU: one of `device_indexes`, or of all GPUs of the machine. A single
    process gets the first of `device_indexes`, if there are any.
    """
    device = device_of_rank(resolve_device(general.train_device), ranks.rank, device_indexes)
    take_first_memory(device)
    return Machine(
        train_device=device,
        temp_device=resolve_device(general.temp_device),
        precision=Precision(precision, device, autocast_cache, steps_autocast),
        guard=DeviceGuard() if general.debug_checks else None,
        ranks=ranks,
    )


def device_of_rank(device: Device, rank: Rank, device_indexes: str) -> Device:
    """Return the training device of a process, and make it torch's current one: some libraries use no other.

    Raises DarkroomError if there are fewer GPUs than processes.
    """
    if device.type != "cuda":
        return device
    chosen = [int(part) for part in device_indexes.split(",") if part.strip()]
    if rank.is_alone and not chosen:
        if device.torch.index is not None:
            torch.cuda.set_device(device.torch)
        return device
    indexes = chosen or list(range(torch.cuda.device_count()))
    if rank.local_index >= len(indexes):
        raise DarkroomError(
            f"There are {rank.num_local} processes on this machine, but only {count(len(indexes), 'GPU')}.",
            advice="Start one process for each GPU.",
        )
    gpu = resolve_device(f"cuda:{indexes[rank.local_index]}")
    torch.cuda.set_device(gpu.torch)
    return gpu


def take_first_memory(device: Device) -> None:
    """Allocate the first bytes of a GPU, with segments of a fixed size if its driver refuses those that grow.

    It may refuse them in virtual machines, in containers, and where programs share a GPU: with errors that name neither
    them nor the setting, and although memory is free.
    """
    if device.type != "cuda" or not grows_segments():
        return
    try:
        torch.empty(1, device=device.torch)
    except RuntimeError as error:
        set_allocator = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # nothing public does it
        if set_allocator is None:
            raise
        set_allocator(FIXED_SEGMENTS)
        fix_segments()
        torch.empty(1, device=device.torch)
        logger.warning("The driver of %s refuses memory that grows, so its segments are fixed. (%s)", device, error)


def name_of(device: Device) -> str:
    """Return the name of a device's hardware, with the memory of a GPU."""
    if device.type != "cuda":
        return device.type
    facts = torch.cuda.get_device_properties(device.torch)
    return f"{facts.name} ({facts.total_memory / 1e9:.0f} GB)"


@contextmanager
def no_spill(device: Device) -> Iterator[None]:
    """Let torch use no more of an NVIDIA GPU's memory on Windows than is free at the start of this context.

    Beyond that the driver uses the computer's memory in silence (NVIDIA calls it the system memory fallback): steps
    take many times as long, where elsewhere an error names what to lower. And as no allocation ever fails, torch's
    allocator would not even give back the blocks that it only caches.
    """
    if not _SPILLS or device.type != "cuda" or torch.version.hip is not None:
        yield
        return
    free_bytes, total_bytes = torch.cuda.mem_get_info(device.torch)
    usable_bytes = free_bytes + torch.cuda.memory_reserved(device.torch)
    index = torch.cuda.current_device() if device.torch.index is None else device.torch.index  # it refuses none
    torch.cuda.set_per_process_memory_fraction(min(1.0, usable_bytes / total_bytes), index)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, index)
