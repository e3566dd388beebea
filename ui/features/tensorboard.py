"""TensorBoard as a child process: when it runs, and what it serves."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO

from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.factories import Package, load_factory
from modules.system.paths import from_root
from ui.forms.preferences import Preferences
from ui.loop.background import Background
from ui.loop.interaction import Answer, Failure, Interaction, failure_of

_log = logging.getLogger(__name__)


class TensorBoardControl:
    """Starts the server in the background; `config` returns the current settings.

    A config may come from anybody, so it cannot expose anything alone: `may_expose(folder, asks)` returns whether the
    user agreed on this machine to expose a folder to the network. With `asks` it asks.
    """

    def __init__(
        self,
        background: Background,
        config: Callable[[], Config],
        notify: Callable[[str], None],
        show_failure: Callable[[Failure], object],
        *,
        install: Callable[[], object],
        may_expose: Callable[[Path, bool], bool],
        open_address: Callable[[str], object] = lambda address: load_factory("webbrowser:open")(address),
        server: TensorBoardServer | None = None,
    ) -> None:
        self._background, self._config, self._notify = background, config, notify
        self._show_failure, self._open_address = show_failure, open_address
        self._install, self._may_expose = install, may_expose
        self._server = server or TensorBoardServer()
        self._is_starting = False

    def open(self) -> None:
        """Serve the runs of the workspace and open the browser."""
        if self._is_starting:
            self._notify("TensorBoard is starting.")
            return
        self._notify("Starting TensorBoard…")
        self._start(self._show_in_browser, asks=True)

    def follow_setting(self) -> None:
        """Start the server if the setting keeps it always on; it keeps running until the window closes."""
        if self._config().general.tensorboard_always_on and not (self._server.is_running or self._is_starting):
            self._start(lambda address: self._notify(f"TensorBoard serves the runs at {address}"), asks=False)

    def close(self) -> None:
        """End the server."""
        self._server.close()

    def _start(self, done: Callable[[str], None], *, asks: bool) -> None:
        general = self._config().general
        folder: Path = from_root(general.workspace_dir) / "runs"
        port = general.tensorboard_port if general.tensorboard_always_on else 0
        is_wanted = general.tensorboard_always_on and general.tensorboard_expose
        is_exposed = is_wanted and self._may_expose(folder, asks)
        self._is_starting = True

        def succeed(address: str) -> None:
            self._is_starting = False
            done(address)

        def fail(error: Exception) -> None:
            self._is_starting = False
            if not isinstance(error, DarkroomError):
                _log.error("TensorBoard could not be started", exc_info=error)
            failure = failure_of("TensorBoard could not be started", error)
            is_missing = isinstance(error, DarkroomError) and error.remedy == "packages"
            if self._show_failure(replace(failure, offer="Install TensorBoard…" if is_missing else "")) and is_missing:
                self._install()

        self._background.run(lambda: self._server.start(folder, port=port, is_exposed=is_exposed), succeed, fail)

    def _show_in_browser(self, address: str) -> None:
        self._notify(f"TensorBoard is at {address}. It ends with this window.")
        self._open_address(address)


def may_expose(preferences: Preferences, interaction: Interaction, folder: Path, asks: bool) -> bool:
    """Return whether the user agreed on this machine that TensorBoard shows a folder to the network."""
    if str(folder) in preferences.now.exposed_folders:
        return True
    if not asks:
        return False
    message = (
        f"The settings ask to make TensorBoard reachable from other machines. Everybody in your network could see the "
        f"curves and samples of all runs in {folder}, without a password."
    )
    answers = (Answer("local", "This machine only", is_default=True), Answer("expose", "Show them to the network"))
    if interaction.choose("Show the runs to the network?", message, answers, "warning") != "expose":
        return False
    preferences.change(exposed_folders=(*preferences.now.exposed_folders, str(folder)))
    return True


LOCAL, EVERYWHERE = "127.0.0.1", "0.0.0.0"
_PATIENCE_SECONDS = 60.0  # it imports for several seconds on a slow disk
_POLL_SECONDS = 0.2


class TensorBoardServer:
    """At most one server. `start` blocks until it answers, so call it on a background thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None  # a file: a pipe would fill, and stop the server
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
            if not Package("tensorboard").is_installed:
                advice = f"{Package('tensorboard').install}, then try again."
                raise DarkroomError("TensorBoard is not installed.", advice=advice, remedy="packages")
            self._port = free_port(port, host=host)
            command = command_of(folder, host, self._port)
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `stop` closes it
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self._errors)
            self._serves = (folder, host)
            self._wait_until_it_answers()
        return f"http://{LOCAL}:{self._port}/"

    def stop(self) -> None:
        """End the server."""
        process, self._process = self._process, None
        errors, self._errors = self._errors, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
        if errors is not None:
            errors.close()

    def close(self) -> None:
        """End the server with the window, even one that is still starting."""
        self._is_closed = True
        self.stop()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not _answers(self._port):
            process = self._process
            if self._is_closed or process is None:
                raise DarkroomError("TensorBoard was stopped while it started.")
            if process.poll() is not None:
                reason = _last_line(self._errors) or f"exit code {process.poll()}."
                raise DarkroomError(f"TensorBoard ended while it started: {reason}", advice=_BY_HAND)
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


def _last_line(errors: IO[bytes] | None) -> str:
    """Return the last line that a process that has ended wrote to a file; "" if it wrote none."""
    if errors is None:
        return ""
    errors.seek(0)
    lines = errors.read().decode("utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
