"""The hardware of a machine that matters for training: a GPU or none, memory, cores and free disk space."""

from __future__ import annotations

from dataclasses import dataclass

from modules.config.schema import Config
from modules.estimate.disk import free_bytes
from modules.system import hardware
from modules.system.hardware import GpuMemory
from trainer.data.hub_datasets import hub_cache_dir
from trainer.launch import first_device


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware of a machine, in bytes. `gpu` is None without one that a run can use, and `why_no_gpu` states why.

    The disk is the one that models are downloaded to; None where its free space is not known.
    """

    gpu: GpuMemory | None
    memory_bytes: int
    disk_bytes: int | None
    num_cores: int
    why_no_gpu: str = ""

    @property
    def card_gb(self) -> int:
        """The gigabytes that its card is sold with; 0 without one."""
        return 0 if self.gpu is None else self.gpu.nominal_gb


def this_machine(config: Config | None = None) -> Machine:
    """Return this machine, with the GPU that a config trains on and the disk of its model downloads.

    Queries the driver, which may take seconds.
    """
    config = config or Config()
    device = first_device(config)
    is_processor = hardware.here().kind_of(device) == "cpu"
    gpu = None if is_processor else hardware.gpu_memory(device)
    return Machine(
        gpu,
        hardware.total_memory(),
        free_bytes(hub_cache_dir(config)),
        hardware.num_cores(),
        _why_no_gpu() if gpu is None else "",
    )


def _why_no_gpu() -> str:
    """Return why a run on this machine trains without a GPU, as a sentence."""
    here = hardware.here()
    if here.torch_build == "cpu" and hardware.gpu_memory("auto") is not None:
        return "The GPU of this machine is not used: the installed torch is the CPU-only build."
    if here.has_no_driver:
        return "No GPU can be used: no NVIDIA driver is loaded."
    return "No GPU was found."
