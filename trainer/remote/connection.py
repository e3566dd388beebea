"""A connection to a machine: OpenSSH's own client, with our agent at its other end.

One connection carries everything, one request after another, so no multiplexing is needed, which the client of Windows
does not have. Keys, agents, jump hosts and aliases come from OpenSSH and its config. It never prompts.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from modules.system.errors import DarkroomError
from modules.system.paths import known_hosts_file
from modules.system.problem import shorten
from trainer.remote import agent
from trainer.remote.record import Remote

_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "GlobalKnownHostsFile=none",
    "UpdateHostKeys=no",
    "ConnectTimeout=20",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=3",
    "ControlPath=none",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "RemoteCommand=none",
    "LogLevel=ERROR",
)
_SECONDS = 120
_NO_FILE, _NO_SPACE, _QUOTA = 2, 28, 122
_NO_CONSOLE = getattr(subprocess, "CREATE_NO_WINDOW", 0)  # of Windows
_MAX_ANSWER_BYTES = 256 << 20  # far more than our agent sends at once
_MAX_NOISE_LINES = 200  # which a shell's startup files print
_BOOT = "import sys; i = sys.stdin.buffer; exec(compile(i.read(int(i.readline())), 'agent', 'exec'))"


class ConnectionLostError(Exception):
    """The connection has ended, or there is none; the reason is its text. Trying it again may help."""


class GoneError(DarkroomError):
    """A file does not exist any more: it was renamed or removed since it was listed."""


class Connection:
    """An open connection. Not thread-safe. Close it, or use it as a context."""

    def __init__(self, remote: Remote) -> None:
        """Connect. Raises DarkroomError if that needs a decision of the user, ConnectionLostError for all else."""
        self.remote = remote
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the connection
        python = remote.python or "python3"
        command = " ".join([*map(shlex.quote, shlex.split(python)), "-u", "-c", shlex.quote(_BOOT)])
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [*ssh_command(remote), "-T", "--", remote.host, command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            creationflags=_NO_CONSOLE,
            start_new_session=True,  # Ctrl-C is for this process
        )
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        source = Path(agent.__file__).read_bytes()
        self._write(f"{len(source)}\n".encode() + source)
        for _ in range(_MAX_NOISE_LINES):
            if self._read_line().strip() == agent.READY.encode():
                break
        self.facts: dict[str, Any] = self.call("hello", folder=self.remote.folder)[0]

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; what runs there continues."""
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError, ValueError):
                stream.close()  # type: ignore[union-attr]
        with contextlib.suppress(OSError):
            self.process.terminate()
        self.process.wait()
        self._errors.close()

    def call(self, request: str, content: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
        """Return the agent's answer to a request, and its bytes.

        Raises DarkroomError for what went wrong there, ConnectionLostError if there is no answer.
        """
        self._write(json.dumps({"request": request, **arguments, "body": len(content)}).encode() + b"\n" + content)
        try:
            answer = json.loads(self._read_line())
            size = answer["body"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConnectionLostError("the other end did not answer as expected") from error
        if not isinstance(size, int) or not 0 <= size <= _MAX_ANSWER_BYTES:
            raise ConnectionLostError("the other end did not answer as expected")
        body = self._stream.read(size)
        if len(body) < size:
            raise self._reason_of_loss()
        if "reason" in answer:
            raise self._error_of(answer)
        return answer["result"], body

    @property
    def _stream(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def _write(self, content: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(content)
            self.process.stdin.flush()
        except (OSError, ValueError):
            raise self._reason_of_loss() from None

    def _read_line(self) -> bytes:
        line = self._stream.readline(_MAX_ANSWER_BYTES)
        if not line.endswith(b"\n"):
            raise self._reason_of_loss()
        return line

    def _error_of(self, answer: dict[str, Any]) -> DarkroomError:
        name, path = self.remote.name, answer.get("path", "")
        if answer.get("errno") in (_NO_SPACE, _QUOTA):
            folder = self.remote.folder
            return DarkroomError(
                f"The disk of {name} is full: {folder}.", advice="Free some space there, and try again."
            )
        what = f"{path}: " if path else ""
        kind = GoneError if answer.get("errno") == _NO_FILE else DarkroomError
        return kind(f"{name} reports: {what}{answer['reason']}.", advice="Check the folder on that machine.")

    def _reason_of_loss(self) -> Exception:
        """Return why the connection has ended: a decision of the user, or anything that may pass."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self._errors.seek(0)
        return reason_of(self.remote, self._errors.read().decode(errors="replace"))


def printed_by(
    connection: Connection, code: str, *, names: Collection[str] = (), python: str = "", folder: str = "/"
) -> Any:
    """Return the last JSON object with these names that Python code prints there; None without one, as after an error.

    Other lines, such as warnings, are ignored. `python` is another Python than the connection's. Raises
    ConnectionLostError, DarkroomError.
    """
    arguments = [python or connection.facts["python"], "-s", "-c", code]
    printed = connection.call("command", arguments=arguments, cwd=folder, seconds=_SECONDS)[1]
    for line in reversed(printed.decode(errors="replace").splitlines()):
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(content := json.loads(line), dict) and content.keys() >= set(names):
                return content
    return None


def unreachable(remote: Remote, error: ConnectionLostError) -> DarkroomError:
    """Return the error of a machine that cannot be reached at all, without raising it."""
    advice = "Check that the machine runs, and its host, port and user."
    if remote.pod:
        advice = f"If it is stopped, start it with: remote start {remote.name}."
    return DarkroomError(f"{remote.name} cannot be reached: {error}.", advice=advice)


def ssh_command(remote: Remote, *, known_hosts: Path | None = None) -> list[str]:
    """Return the command of OpenSSH's client for a machine, without its host.

    Raises DarkroomError without a client, an address, or the key.
    """
    if not remote.host:
        raise DarkroomError(f"{remote.name} has no address.", advice=f"Start it with: remote start {remote.name}.")
    ssh = shutil.which("ssh")
    if ssh is None:
        raise DarkroomError("OpenSSH's client was not found.", advice="Install it: the package openssh-client.")
    options = [*_OPTIONS, f'UserKnownHostsFile="{known_hosts or known_hosts_file()}"']
    command = [ssh, *(word for option in options for word in ("-o", option))]
    command += ["-p", str(remote.port)] if remote.port else []
    command += ["-l", remote.user] if remote.user else []
    if remote.key_file:
        key_file = Path(remote.key_file).expanduser()
        if not key_file.is_file():
            raise DarkroomError(
                f"The key file of {remote.name} does not exist: {key_file}.", advice="Choose another one."
            )
        command += ["-i", str(key_file), "-o", "IdentitiesOnly=yes"]
    return command


_WANTS_USER = (
    (
        r"HOST IDENTIFICATION HAS CHANGED",
        "The host key of {name} has changed: another machine may be answering at {host}. Nothing was sent.",
        "If you know why it has changed, such as a new installation, accept the new one with: remote check {name} "
        "--new-key",
    ),
    (
        r"Host key verification failed|No .* host key is known",
        "The host key of {name} is not known.",
        "See and accept it with: remote check {name}",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "{name} does not accept the key.",
        "Add your public key to ~/.ssh/authorized_keys there, or choose another key with --key. A key with a "
        "passphrase must be in the SSH agent (ssh-add).",
    ),
    (
        r"(UNPROTECTED PRIVATE KEY|bad permissions)",
        "The key file of {name} can be read by others, so OpenSSH does not use it.",
        "Make it readable by you alone: chmod 600 {key}",
    ),
    (
        r"python\S*: (command )?not found|not found: \S*python|No such file or directory.*python|python.*No such file"
        r"|line \d+: .*(not found|No such file)",
        "{name} has no Python at {python}.",
        "Install Python 3.11 or newer there, or name another one with --python, a path with spaces in quotation marks.",
    ),
)


def reason_of(remote: Remote, printed: str) -> Exception:
    """Return the error of a connection from what OpenSSH has printed."""
    names = {
        "name": remote.name,
        "host": remote.host,
        "key": remote.key_file,
        "python": remote.python or "python3",
    }
    for pattern, message, advice in _WANTS_USER:
        if re.search(pattern, printed):
            return DarkroomError(message.format(**names), advice=advice.format(**names))
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return ConnectionLostError(shorten(lines[-1], max_chars=200).rstrip(".") if lines else "the connection was closed")
