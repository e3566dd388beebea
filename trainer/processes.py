"""Which processes a run needs, and starting those of several devices with PyTorch's launcher (torchrun)."""

from __future__ import annotations

from modules.config.schema import Config
from modules.system import hardware


def num_processes(config: Config) -> int:
    """Return how many processes a config requires: one for each GPU that it names, or for each of the machine."""
    settings = config.multi_gpu
    if not settings.enabled:
        return 1
    named = [part for part in settings.device_indexes.split(",") if part.strip()]
    return max(1, len(named) or len(hardware.here().capabilities or ()))


def needs_own_process(config: Config) -> bool:
    """Return whether a run must not share the process of the window, or of the runs before it.

    A deterministic run on an NVIDIA GPU needs an environment variable that torch reads once in a process, at the first
    matrix product on a GPU; an earlier run may have computed without it.
    """
    general = config.general
    return general.deterministic and hardware.here().kind_of(general.train_device) == "cuda"


def module_arguments(config: Config) -> list[str]:
    """Return Python's arguments, without the verb, that start as many processes as a config requires."""
    count, trainer = num_processes(config), ["-m", "trainer"]
    if count == 1:
        return trainer
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), *trainer]
