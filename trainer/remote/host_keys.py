"""The keys of hosts that the user accepts, in a file of Darkroom's own, and a key pair for a user without one."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from modules.system.atomic import make_folder, write_text
from modules.system.errors import DarkroomError
from modules.system.paths import known_hosts_file
from modules.system.problem import shorten
from trainer.remote.connection import ConnectionLostError, ssh_command
from trainer.remote.record import Remote

_SECONDS = 60


def offered_keys(remote: Remote) -> str:
    """Return the lines for the file of known hosts that a machine offers now, without a login.

    OpenSSH's own client connects, so that its aliases and jump hosts count. Raises ConnectionLostError.
    """
    with tempfile.TemporaryDirectory(prefix="darkroom-") as folder:
        file = Path(folder) / "known_hosts"
        command = ssh_command(remote, known_hosts=file)
        # The first value of an option counts.
        options = ["-o", "StrictHostKeyChecking=accept-new", "-o", "PreferredAuthentications=none"]
        options += ["-o", "HashKnownHosts=no"]
        printed = _run([command[0], *options, *command[1:], "-T", "--", remote.host, "exit"])
        with suppress(OSError):
            if lines := file.read_text(encoding="utf-8"):
                return lines
    last = [line.strip() for line in printed.splitlines() if line.strip()]
    raise ConnectionLostError(last[-1].rstrip(".") if last else "no answer")


def fingerprints(lines: str) -> list[str]:
    """Return the fingerprints of host keys, as OpenSSH shows them: "256 SHA256:... host (ED25519)"."""
    with tempfile.TemporaryDirectory(prefix="darkroom-") as folder:
        file = Path(folder) / "keys"
        file.write_text(lines, encoding="utf-8")
        return [line for line in _run(["ssh-keygen", "-l", "-f", str(file)]).splitlines() if "SHA256:" in line]


def is_known(remote: Remote) -> bool:
    """Return whether a host key of a machine was accepted; OpenSSH compares it at each connection."""
    try:
        lines = known_hosts_file().read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    settings = dict(
        line.split(" ", 1) for line in _run([*ssh_command(remote), "-G", "--", remote.host]).splitlines() if " " in line
    )
    host, port = settings.get("hostkeyalias") or settings.get("hostname", remote.host), settings.get("port", "22")
    return any(line.split()[:1] == [host if port == "22" else f"[{host}]:{port}"] for line in lines)


def accept(lines: str) -> None:
    """Keep host keys as known; they replace the host's former keys. Raises OSError."""
    file = known_hosts_file()
    hosts = {line.split()[0] for line in lines.splitlines() if line.strip()}
    with suppress(FileNotFoundError):
        others = file.read_text(encoding="utf-8").splitlines()
        lines = "".join(f"{line}\n" for line in others if line.split()[:1] and line.split()[0] not in hosts) + lines
    write_text(file, lines)


def make_key_pair(file: Path) -> None:
    """Make a pair of SSH keys without a passphrase, readable by the user alone. Raises DarkroomError, OSError."""
    make_folder(file.parent)
    printed = _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "darkroom", "-f", str(file)])
    if not file.is_file():
        reason = shorten(" ".join(printed.split()), max_chars=200)
        raise DarkroomError(f"The pair of keys could not be made: {reason}.", advice="Make one with: ssh-keygen")


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "it did not answer in time"
    except OSError as error:
        raise DarkroomError("OpenSSH's programs were not found.", advice="Install openssh-client.") from error
    return done.stdout.decode(errors="replace")
