"""TensorBoard's own server as a child process of the window. No Tk."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import time
from pathlib import Path

from modules.system.errors import DarkroomError

LOCAL, EVERYWHERE = "127.0.0.1", "0.0.0.0"
_PATIENCE_SECONDS = 60.0  # it imports for several seconds on a slow disk
_POLL_SECONDS = 0.2


class TensorBoardServer:
    """At most one server. `start` blocks until it answers, so call it on a background thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._serves: tuple[Path, str] | None = None
        self._port = 0
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        """Whether the server runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, folder: Path, *, port: int = 0, is_exposed: bool = False) -> str:
        """Serve a folder of runs and return the address; one that is served already is only returned.

        Port 0, or one that is taken, is replaced by a free one. Raises DarkroomError if TensorBoard is not installed
        or does not start.
        """
        host = EVERYWHERE if is_exposed else LOCAL
        if not (self.is_running and self._serves == (folder, host)):
            self.stop()
            if importlib.util.find_spec("tensorboard") is None:
                raise DarkroomError(
                    "TensorBoard is not installed.", advice="Install it with: pip install tensorboard. Then try again."
                )
            self._port = free_port(port, host=host)
            command = command_of(folder, host, self._port)
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            self._serves = (folder, host)
            self._wait_until_it_answers()
        return f"http://{LOCAL}:{self._port}/"

    def stop(self) -> None:
        """End the server."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()

    def close(self) -> None:
        """End the server with the window; one that is still starting ends, too."""
        self._is_closed = True
        self.stop()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not _answers(self._port):
            process = self._process
            if self._is_closed or process is None:
                raise DarkroomError("TensorBoard was stopped while it started.")
            if process.poll() is not None:
                raise DarkroomError(f"TensorBoard ended while it started: {_last_line(process)}", advice=_BY_HAND)
            if time.monotonic() > deadline:
                self.stop()
                raise DarkroomError("TensorBoard did not answer within a minute.", advice=_BY_HAND)
            time.sleep(_POLL_SECONDS)


_BY_HAND = "Start it by hand to see more: python -m tensorboard.main --logdir FOLDER."


def command_of(folder: Path, host: str, port: int) -> list[str]:
    """Return the command of a server."""
    return [
        sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", host, "--port", str(port),
        "--reload_interval", "15",
    ]  # fmt: skip


def free_port(wanted: int, *, host: str = LOCAL) -> int:
    """Return a port if it is free, else another free one."""
    for port in (wanted, 0) if wanted else (0,):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise DarkroomError("No port of this machine is free for TensorBoard.")


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((LOCAL, port), timeout=1):
            return True
    except OSError:
        return False


def _last_line(process: subprocess.Popen[bytes]) -> str:
    text = process.stderr.read().decode("utf-8", errors="replace") if process.stderr is not None else ""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), f"exit code {process.poll()}.")
