"""`python -m benchmarks upload`: sending many small images to another machine, compared to rsync in the same run.

The other machine is an SSH server on this one with keys of its own, so the network costs nothing and only the work at
both ends counts. Bytes are counted on the loopback device, in both directions.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil

from modules.system.errors import DarkroomError
from tests.builders.ssh import SSHD, WHY_NOT, Server, accept_key, ssh_server
from trainer.cli.program import Verb, run_verb
from trainer.remote.connection import Connection, ssh_command
from trainer.remote.trees import Tree, files_below, send_trees

_SUMMARY = "Send many small images to an SSH server on this machine, and compare it with rsync."
_MANY_PER_FOLDER = 1000


def _measure(options: argparse.Namespace) -> int:
    rsync = shutil.which("rsync")
    if SSHD is None or rsync is None:
        raise DarkroomError(WHY_NOT if SSHD is None else "rsync is not installed.", advice="Install it.")
    with tempfile.TemporaryDirectory(prefix="darkroom-upload-") as name:
        folder = Path(name)
        images = _images(folder / "images", options.images, options.kilobytes * 1000)
        (folder / "ssh").mkdir()
        with ssh_server(folder / "ssh", folder / "machine", {"PYTHONDONTWRITEBYTECODE": "1"}) as server:
            accept_key(server)
            for what in ("first", "again", "one more image"):
                if what == "one more image":
                    (images / "0" / "one_more.jpg").write_bytes(b"x" * 1000)
                _compare(what, server, images, rsync, folder)
    return 0


def _compare(what: str, server: Server, images: Path, rsync: str, folder: Path) -> None:
    ours = _measure_cost(lambda: _send(server, images, folder / "cache"))
    remote = replace(server.remote, folder=str(folder / "rsync"))
    ssh = shlex.join([*ssh_command(remote), "-T"])
    copy = [rsync, "-a", "-e", ssh, f"{images}/", f"{remote.host}:{remote.folder}/"]
    theirs = _measure_cost(lambda: subprocess.run(copy, check=True))
    sys.stdout.write(f"{what:16} {ours}   rsync -a {theirs}   ratio {ours.seconds / theirs.seconds:.2f}\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class _Cost:
    seconds: float
    num_bytes: int

    def __str__(self) -> str:
        return f"{self.seconds:6.2f} s {self.num_bytes / 1e6:8.2f} MB"


def _measure_cost(work: Callable[[], object]) -> _Cost:
    start, before = time.perf_counter(), _loopback_bytes()
    work()
    return _Cost(time.perf_counter() - start, _loopback_bytes() - before)


def _loopback_bytes() -> int:
    devices = psutil.net_io_counters(pernic=True)
    return sum(counter.bytes_sent for name, counter in devices.items() if name.startswith("lo"))


def _send(server: Server, images: Path, cache: Path) -> None:
    with Connection(server.remote) as connection:
        tree = Tree(tuple(files_below(images)))
        send_trees(connection, [tree], cache_dir=cache, progress=lambda _progress: None)


def _images(folder: Path, count: int, size_bytes: int) -> Path:
    """Return a folder of files of random bytes, as compressed images are."""
    random = np.random.default_rng(0)
    for number in range(count):
        file = folder / str(number // _MANY_PER_FOLDER) / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(random.bytes(size_bytes))
    return folder


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", metavar="N", type=int, default=20_000)
    parser.add_argument("--kilobytes", metavar="N", type=int, default=20, help="the size of each")


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    return run_verb("python -m benchmarks upload", Verb(_SUMMARY, _arguments, _measure), arguments)
