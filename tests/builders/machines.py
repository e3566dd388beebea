"""Two machines in one: network namespaces that a pair of virtual network interfaces connects. Needs root and `ip`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from modules.system.paths import PROGRAM_ROOT

_ADDRESSES = ("10.231.77.1", "10.231.77.2")


@dataclass(frozen=True, slots=True)
class Machines:
    """Two network namespaces."""

    names: tuple[str, str]

    def torchrun(
        self, number: int, config_file: Path, *, folders: Mapping[Path, Path] | None = None
    ) -> subprocess.Popen[str]:
        """Start the process of a machine, as a user does. `folders` are its own, by those that the other has there."""
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        command += ["--node-rank", str(number), "--master-addr", _ADDRESSES[0], "--master-port", "29500"]
        command += ["-m", "trainer", "train", str(config_file), "--json-lines"]
        mounts = [f"mount --bind {shlex.quote(str(own))} {shlex.quote(str(at))}" for at, own in (folders or {}).items()]
        script = " && ".join([*mounts, f"exec {shlex.join(command)}"])
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[number], "sh", "-c", script],
            cwd=PROGRAM_ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def why_no_machines() -> str:
    """Return why this system cannot have them; empty if it can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need ip, of the package iproute2"
    try:
        with connected_machines():
            return ""
    except subprocess.CalledProcessError as error:
        return f"there are no network namespaces here: {error.stderr.strip()}"


@contextmanager
def connected_machines() -> Iterator[Machines]:
    """Yield two machines that reach each other, and remove them."""
    names = f"darkroom-{os.getpid()}-0", f"darkroom-{os.getpid()}-1"
    made: list[str] = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
        _ip("link", "add", "link0", "netns", names[0], "type", "veth", "peer", "name", "link1", "netns", names[1])
        for number, name in enumerate(names):
            _ip("-n", name, "address", "add", f"{_ADDRESSES[number]}/24", "dev", f"link{number}")
            for interface in ("lo", f"link{number}"):
                _ip("-n", name, "link", "set", interface, "up")
        yield Machines(names)
    finally:
        for name in made:
            _ip("netns", "delete", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
