"""When TensorBoard is served: on request, and as long as the window is open, where the config is set to. No Tk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.paths import from_root
from ui.features.tensorboard.server import TensorBoardServer
from ui.forms.preferences import Preferences
from ui.loop.background import Background
from ui.loop.interaction import Answer, Failure, Interaction

_log = logging.getLogger(__name__)


class TensorBoardControl:
    """Starts the server in the background; `config` returns the current settings.

    A config may come from anybody, so it exposes nothing by itself: `may_expose(folder, asks)` is whether the user
    agreed to expose a folder to the network, on this machine. With `asks` it asks.
    """

    def __init__(
        self,
        background: Background,
        config: Callable[[], Config],
        notify: Callable[[str], None],
        show_failure: Callable[[Failure], None],
        *,
        may_expose: Callable[[Path, bool], bool],
        open_address: Callable[[str], object] = lambda address: load_factory("webbrowser:open")(address),
        server: TensorBoardServer | None = None,
    ) -> None:
        self._background, self._config, self._notify = background, config, notify
        self._show_failure, self._open_address = show_failure, open_address
        self._may_expose = may_expose
        self._server = server or TensorBoardServer()
        self._is_starting = False

    def open(self) -> None:
        """Serve the runs of the workspace and open the browser."""
        if self._is_starting:
            self._notify("TensorBoard is starting.")
            return
        self._notify("Starting TensorBoard…")
        self._start(self._opened, asks=True)

    def follow_setting(self) -> None:
        """Start the server where it is always on; it keeps running until the window closes."""
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

        def finished(address: str) -> None:
            self._is_starting = False
            done(address)

        def failed(error: Exception) -> None:
            self._is_starting = False
            if not isinstance(error, DarkroomError):
                _log.error("TensorBoard could not be started", exc_info=error)
            message = error.message if isinstance(error, DarkroomError) else str(error)
            advice = error.advice if isinstance(error, DarkroomError) else ""
            self._show_failure(Failure("TensorBoard could not be started", message, advice))

        self._background.run(lambda: self._server.start(folder, port=port, is_exposed=is_exposed), finished, failed)

    def _opened(self, address: str) -> None:
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
