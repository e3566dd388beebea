"""The speed of two processes with one CPU thread each, compared to one with one thread, on the same steps.

Both wait for orders all the time and train in turns, so that changes of the machine's speed affect both. Started as
`python -m trainer.benchmark.several CONFIG`, a process trains an epoch for each line of its input.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from modules.config.codec import load_file, save_file
from modules.config.schema import Config
from modules.system.devices import CPU
from modules.system.paths import PROGRAM_ROOT
from modules.system.ranks import current_rank
from trainer.benchmark.loop_speed import run_setup
from trainer.benchmark.measure import Ratio, paired
from trainer.ranks import connect
from trainer.run.training_run import prepare
from trainer.step.loop import train_epoch
from trainer.step.precision import process_settings


def two_against_one(config: Config, folder: Path, *, rounds: int) -> Ratio:
    """Return the speed of two processes relative to one; 2 is linear. A round is an epoch of the config."""
    file = folder / "several.json"
    save_file(config, file)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    one = [_started(file, {})]
    time.sleep(1.1)  # the folders of runs are named by the second
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    two = [_started(file, {**shared, "RANK": index, "LOCAL_RANK": index}) for index in ("0", "1")]
    try:
        return paired(lambda: _train(two), lambda: _train(one), rounds=rounds, device=CPU)
    finally:
        for process in (*one, *two):
            process.communicate()


def _started(file: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trainer.benchmark.several", str(file)],
        cwd=PROGRAM_ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _train(processes: list[subprocess.Popen[str]]) -> None:
    """Let processes train an epoch together, and wait for them."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("a process of the benchmark has ended")


def _main(file: Path) -> None:
    config = load_file(file).config
    ranks = connect(current_rank(), device_type="cpu")
    with process_settings(num_threads=1, precision=config.training.precision, deterministic=False):
        setup = run_setup(config)
        run = prepare(replace(setup, machine=replace(setup.machine, ranks=ranks)))
        for _ in sys.stdin:
            train_epoch(run.training)
            sys.stdout.write("done\n")
            sys.stdout.flush()
        run.close()
    ranks.close()


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
