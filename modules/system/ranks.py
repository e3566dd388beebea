"""The number of this process among the processes of a run, from the launcher's environment; nothing else reads that."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from modules.system.errors import DarkroomError

_SLURM = {
    "RANK": "SLURM_PROCID",
    "WORLD_SIZE": "SLURM_STEP_NUM_TASKS",  # unlike SLURM_NTASKS only set for processes that srun has started
    "LOCAL_RANK": "SLURM_LOCALID",
}
_FIRST_PORT, _NUM_PORTS, _PORTS_APART = 20_000, 12_000, 101  # below the ports that Linux gives to connections


@dataclass(frozen=True, slots=True)
class Rank:
    """The number of a process among several, counted from 0, and how many there are.

    `local_index` and `num_local` count the processes of this machine, whose number is `machine`.
    """

    index: int
    world_size: int
    local_index: int = 0
    num_local: int = 1
    machine: int = 0

    @property
    def is_main(self) -> bool:
        """Whether it is the process that writes: the first."""
        return self.index == 0

    @property
    def is_first_here(self) -> bool:
        """Whether it is the first process of its machine."""
        return self.local_index == 0

    @property
    def is_alone(self) -> bool:
        """Whether the run is a single process."""
        return self.world_size == 1

    def __str__(self) -> str:
        return f"process {self.index + 1} of {self.world_size}"


ONLY_RANK = Rank(0, 1)


def current_rank(environment: Mapping[str, str] | None = None) -> Rank:
    """Return the rank that torchrun or SLURM (srun) gave this process; the only one without them.

    Raises DarkroomError if the environment does not make sense.
    """
    given = _from_slurm(dict(os.environ if environment is None else environment))
    if "RANK" not in given or "WORLD_SIZE" not in given:
        return ONLY_RANK
    try:
        index, world_size = int(given["RANK"]), int(given["WORLD_SIZE"])
        local_index = int(given.get("LOCAL_RANK", index))
        num_local = int(given.get("LOCAL_WORLD_SIZE", world_size))
        machine = int(given.get("GROUP_RANK", index - local_index))
    except ValueError:
        index, world_size, local_index, num_local, machine = -1, 0, 0, 0, 0
    if not 0 <= index < world_size:
        raise DarkroomError(
            f"The environment names no valid process: RANK={given['RANK']}, WORLD_SIZE={given['WORLD_SIZE']}.",
            advice="Start the processes with torchrun or srun, or unset both variables.",
        )
    return ONLY_RANK if world_size == 1 else Rank(index, world_size, local_index, max(1, num_local), machine)


def meeting_place(environment: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Return the host and the port at which the processes of a run meet, from the launcher's environment."""
    given = dict(os.environ if environment is None else environment)
    host = given.get("MASTER_ADDR") or given.get("SLURM_LAUNCH_NODE_IPADDR") or "127.0.0.1"
    step = given.get("SLURM_STEP_ID", "")  # a job may start several runs on the same machine
    number = int(given.get("SLURM_JOB_ID", "0")) + _PORTS_APART * (int(step) % _NUM_PORTS if step.isdecimal() else 0)
    own_port = _FIRST_PORT + number % _NUM_PORTS
    return host, int(given.get("MASTER_PORT") or own_port)


def _from_slurm(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment with torchrun's names for what SLURM sets, unless torchrun's are there."""
    if "RANK" in environment or not all(name in environment for name in _SLURM.values()):
        return environment
    here = environment.get("SLURM_STEP_TASKS_PER_NODE", "").partition("(")[0]
    known = {"LOCAL_WORLD_SIZE": here, "GROUP_RANK": environment.get("SLURM_NODEID", "")}
    local = {name: value for name, value in known.items() if value.isdecimal()}
    return {**environment, **{name: environment[of_slurm] for name, of_slurm in _SLURM.items()}, **local}
