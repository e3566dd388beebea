"""Starting the processes of a run on several devices, with PyTorch's own launcher (torchrun). Torch-free."""

from __future__ import annotations

import sys

from modules.config.schema import Config
from modules.system import hardware


def num_processes(config: Config) -> int:
    """Return how many processes a config requires: one for each GPU that it names, or for each of the machine."""
    settings = config.multi_gpu
    if not settings.enabled:
        return 1
    named = [part for part in settings.device_indexes.split(",") if part.strip()]
    return max(1, len(named) or len(hardware.here().capabilities or ()))


def trainer_command(config: Config) -> list[str]:
    """Return the command line, without its verb, that carries out a config with as many processes as it requires."""
    python, count = [sys.executable, "-s", "-m"], num_processes(config)
    if count == 1:
        return [*python, "trainer"]
    return [*python, "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m", "trainer"]
