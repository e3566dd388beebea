"""A real SSH server on loopback with keys of its own, and a machine behind it: a folder, and this Python."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.builders.ports import kept_port
from trainer.remote.host_keys import accept, offered_keys
from trainer.remote.record import Remote

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
WHY_NOT = "The OpenSSH server (package openssh-server) is not installed, so nothing can be trained over SSH."
_SECONDS = 120
_USER_FOLDERS = ("config", "state", "cache", "data")


@dataclass
class Server:
    """A running server, and the record of the machine behind it."""

    folder: Path
    port: int
    remote: Remote
    process: subprocess.Popen[bytes]
    environment: dict[str, str] = field(default_factory=dict)

    def cut(self) -> int:
        """End all connections at once, as a network that is lost; return how many there were."""
        return self._signal(signal.SIGKILL)

    def freeze(self) -> int:
        """Let all connections fall silent, as a network that swallows everything; return how many there were."""
        return self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> int:
        children = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        sessions = [child for child in children if child.name().startswith("sshd")]
        for session in sessions:
            with suppress(psutil.NoSuchProcess):
                session.send_signal(number)
        return len(sessions)

    def stop(self) -> None:
        """Stop to answer."""
        self.cut()
        self.process.kill()
        self.process.wait()

    def start(self) -> None:
        """Answer again, at the same port and with the same keys."""
        self.process = _serve(self.folder, self.port)

    def new_host_key(self) -> None:
        """Answer with another host key, as another machine would."""
        self.stop()
        (self.folder / "host").unlink()
        _make_key(self.folder / "host")
        self.start()


@contextmanager
def ssh_server(folder: Path, machine: Path, environment: dict[str, str]) -> Iterator[Server]:
    """Run a server, whose sessions have these environment variables. Its host key is not accepted yet."""
    for name in ("host", "user"):
        _make_key(folder / name)
    (folder / "authorized").write_text((folder / "user.pub").read_text())
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    variables = " ".join(f'"{name}={value}"' for name, value in environment.items())
    (folder / "config").write_text(
        f'ListenAddress 127.0.0.1\nHostKey "{folder / "host"}"\nAuthorizedKeysFile "{folder / "authorized"}"\n'
        f"StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nPidFile none\nMaxStartups 50\n"
        f"SetEnv {variables}\n"
    )
    key_file, python = str(folder / "user"), shlex.quote(sys.executable)  # a command, as in: conda run -n NAME python
    with kept_port() as port:
        remote = Remote("box", "127.0.0.1", port, key_file=key_file, folder=str(machine), python=python)
        server = Server(folder, port, remote, _serve(folder, port))
        try:
            yield server
        finally:
            server.stop()


def machine_environment(home_dir: Path) -> dict[str, str]:
    """Return the environment of a machine without a package index whose user's folders are those of a test."""
    folders = {f"XDG_{name.upper()}_HOME": str(home_dir / f"xdg_{name}_home") for name in _USER_FOLDERS}
    return {**folders, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1", "PIP_NO_INDEX": "1"}


def accept_key(server: Server) -> None:
    """Accept the host key of a server, as a person does once."""
    accept(offered_keys(server.remote))


def _serve(folder: Path, port: int) -> subprocess.Popen[bytes]:
    assert SSHD is not None
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(folder / "config"), "-p", str(port)], stdin=subprocess.DEVNULL, stderr=log
        )
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
    raise AssertionError((folder / "log").read_text())


def _make_key(file: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
