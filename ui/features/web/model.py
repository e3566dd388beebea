"""The page in the browser as the window sees it: a child process that serves it, off until the user switches it on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from modules.system.file_errors import plain_reason
from ui.forms.preferences import Preferences
from ui.loop.signal import Signal

if TYPE_CHECKING:  # the window starts without them
    from trainer.child.process import ChildProcess

Reach = Literal["off", "here", "network"]
REACHES: dict[str, str] = {"off": "Off", "here": "On this computer", "network": "In your network, for a phone"}
_NUM_LINES = 2
_ARGUMENTS: dict[Reach, Sequence[str]] = {"here": (), "network": ("--host=0.0.0.0",)}


class PageState(NamedTuple):
    """The address of the page and a note on who can reach it, or the problem for which it is not served."""

    url: str = ""
    note: str = ""
    problem: str = ""


class WebPage:
    """Switches the page on and off. It ends with the window; runs that were started there continue."""

    def __init__(self, workspaces: Callable[[], Sequence[Path]], preferences: Preferences) -> None:
        """`workspaces` returns those whose runs the window lists."""
        self.changed: Signal[[]] = Signal()
        self.reach: Reach = "off"
        self.served = PageState()
        self._workspaces, self._preferences = workspaces, preferences
        self._child: ChildProcess[PageState] | None = None
        self._sent = ""

    @property
    def is_starting(self) -> bool:
        """Whether the page is on its way."""
        return self._child is not None and not self.served.url

    def switch(self, reach: Reach) -> None:
        """Serve the page where it can be reached from, or nowhere."""
        if reach != self.reach:
            self._serve(reach)

    @property
    def certificate(self) -> Path | None:
        """The certificate with which the page is served to the network; None for a connection without encryption."""
        certificate = self._preferences.now.certificate
        return Path(certificate) if certificate else None

    def encrypt(self, certificate: Path | None, key: Path | None = None) -> None:
        """Serve the page to the network with a certificate, whose private key may be in the same file, or without."""
        self._preferences.change(certificate=str(certificate or ""), certificate_key=str(key or ""))
        self._serve(self.reach)

    def _serve(self, reach: Reach) -> None:
        self.close()
        self.reach, self.served = reach, PageState()
        if reach != "off":
            self._start([*_ARGUMENTS[reach], *(self._encryption() if reach == "network" else ())])
        self.changed()

    def _encryption(self) -> Sequence[str]:
        now = self._preferences.now
        words = (("--certificate", now.certificate), ("--key", now.certificate_key))
        return [f"{option}={file}" for option, file in words if file]

    def drain(self, _deadline: float) -> bool:
        """Take what the process reports: a source of the pump."""
        child = self._child
        if child is None:
            return False
        for served in child.waiting():
            self.served = served
            if served.problem:
                self.reach, self._child = "off", None
            self.changed()
        return False

    def send_workspaces(self) -> None:
        """Let the page show the runs of all workspaces that the window knows."""
        line = json.dumps([str(folder) for folder in self._workspaces()])
        if self._child is not None and line != self._sent:
            self._sent = line
            self._child.send_line(line)

    def close(self) -> None:
        """End the page."""
        if self._child is not None:
            self._child.close()
        self._child, self._sent = None, ""

    def _start(self, arguments: Sequence[str]) -> None:
        from trainer.child.process import ChildProcess

        try:
            self._child = ChildProcess(("web", "--json-lines", *arguments), read=_read, ending=_ending)
        except OSError as error:
            self.reach, self.served = "off", PageState(problem=f"It could not be started: {plain_reason(error)}.")
            return
        self.send_workspaces()


def _read(line: str) -> PageState | None:
    try:
        data = json.loads(line)
        return PageState(str(data["url"]), str(data["note"]))
    except (ValueError, KeyError, TypeError):
        return None


def _ending(_last: PageState | None, _code: int, log: Path) -> PageState:
    from modules.system.atomic import remove_quietly
    from trainer.child.process import last_lines

    printed = last_lines(log, _NUM_LINES).replace("\n", " ")
    remove_quietly(log)
    return PageState(problem=printed or "The page has ended unexpectedly.")
