"""The speed of two processes with one CPU thread each, compared to one process with one thread, on the same steps.

All processes are started once, wait for orders and train in turns, so that changes of the machine's speed affect each
of them. `python -m benchmarks.several CONFIG` is such a process: it trains an epoch for each line of its input.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.loop_speed import run_setup
from benchmarks.measure import Ratio, compare_all, twice
from modules.config.codec import export_file, load_file
from modules.config.schema import Config
from modules.system.devices import CPU
from modules.system.paths import PROGRAM_ROOT
from modules.system.process_setup import hide_library_warnings
from modules.system.ranks import current_rank
from trainer.ranks import connect
from trainer.run.training_run import prepare
from trainer.step.loop import train_epoch
from trainer.step.precision import process_settings


@dataclass(frozen=True, slots=True)
class Scaling:
    """How much faster two processes are than one; 2 is linear.

    `together` is one run on two processes. Two independent runs show what the machine allows, because they share its
    memory and caches, too: `apart` are two such runs of the config, `halves` two with half the batch size, which is
    what each process of a shared run trains on.
    """

    together: Ratio
    apart: Ratio
    halves: Ratio
    cpu_time: Mapping[str, float]
    """The CPU time for the work for which one process takes 1, by the names above. Other programs hardly change it."""


def two_against_one(config: Config, folder: Path, *, rounds: int) -> Scaling:
    """Return how the speed of a run grows with two processes. A round is an epoch of the config."""
    training = config.training
    half = config.model_copy(update={"training": training.model_copy(update={"batch_size": training.batch_size // 2})})
    one, second = (
        _start_process(config, folder / "several.json", {}),
        _start_process(config, folder / "several.json", {}),
    )
    halves = [_start_process(half, folder / "half.json", {}) for _ in range(2)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    both = [_start_process(config, folder / "several.json", {**shared, "RANK": n, "LOCAL_RANK": n}) for n in ("0", "1")]
    groups = {"together": both, "apart": [one, second], "halves": halves, "one": [one]}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in groups}

    def train(name: str) -> None:
        cpu_seconds[name].append(_train(groups[name]))

    try:
        together, apart, of_halves = compare_all(
            [lambda: train("together"), lambda: train("apart"), lambda: train("halves")],
            lambda: train("one"),
            rounds=rounds,
            device=CPU,
        )
    finally:
        for process in (one, second, *halves, *both):
            process.communicate()
    of_one = statistics.median(cpu_seconds["one"][1:])  # the first round is a warm-up
    work = {"together": 1, "apart": 2, "halves": 2}
    cpu_time = {name: statistics.median(cpu_seconds[name][1:]) / (n * of_one) for name, n in work.items()}
    return Scaling(together, twice(apart), twice(of_halves), cpu_time)  # two runs train twice the steps


def _start_process(config: Config, file: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    export_file(config, file)
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.several", str(file)],
        cwd=PROGRAM_ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _train(processes: list[subprocess.Popen[str]]) -> float:
    """Let processes train an epoch at once, wait for them, and return the CPU time of all."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    seconds = 0.0
    for process in processes:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the benchmark has ended")
        seconds += float(line)
    return seconds


def _main(file: Path) -> None:
    config = load_file(file).config
    ranks = connect(current_rank(), device_type="cpu")
    with process_settings(num_threads=1, precision=config.training.precision, deterministic=False):
        setup = run_setup(config)
        run = prepare(replace(setup, machine=replace(setup.machine, ranks=ranks)))
        for _ in sys.stdin:
            before = time.process_time()
            train_epoch(run.training)
            sys.stdout.write(f"{time.process_time() - before}\n")
            sys.stdout.flush()
        run.close()
    ranks.close()


if __name__ == "__main__":
    hide_library_warnings()
    _main(Path(sys.argv[1]))
