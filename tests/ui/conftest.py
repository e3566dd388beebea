"""What tests of the window share. Any error in a Tk callback and any logged error fails the test it happens in."""

from __future__ import annotations

import logging
import sys
import time
import tkinter as tk
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pytest

from tests.ui.fake_engine import FakeEngine
from tests.ui.recorder import Recorder
from ui.app import App
from ui.forms.model import FormModel
from ui.theme import Theme
from ui.widgets.window import create_root

_PATIENCE_SECONDS = 20.0


class _ErrorCatcher(logging.Handler):
    """Keeps every error that is logged: faults in Tk callbacks end here, too."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(self.format(record))


def _log_fault(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger(__name__).error("A fault outside of any window", exc_info=(kind, error, trace))


@pytest.fixture(autouse=True)
def logged_errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Fail a test in which an error was logged, unless it looks at the list and empties it."""
    catcher = _ErrorCatcher()
    logging.getLogger().addHandler(catcher)
    monkeypatch.setattr(sys, "excepthook", _log_fault)  # what a listener raises while there is no window
    yield catcher.messages
    logging.getLogger().removeHandler(catcher)
    assert not catcher.messages, "\n".join(catcher.messages)


@pytest.fixture(scope="session")
def tk_root() -> Iterator[tk.Tk]:
    """The one root of all tests: several in a process end in after-scripts of the dead."""
    root = create_root(Theme("dark"))
    yield root
    root.destroy()


@pytest.fixture
def root(tk_root: tk.Tk) -> Iterator[tk.Tk]:
    """The root without anything in it, and without the bindings of the last test."""
    bound_everywhere = set(tk_root.bind_all())
    yield tk_root
    for child in tk_root.winfo_children():
        child.destroy()
    for sequence in set(tk_root.bind_all()) - bound_everywhere:
        tk_root.unbind_all(sequence)
    for sequence in tk_root.bind():
        tk_root.unbind(sequence)
    tk_root.update()
    tk_root.withdraw()


@dataclass
class Window:
    """The running window as a test drives it."""

    app: App
    engine: FakeEngine
    asked: Recorder

    def wait_until(
        self, condition: Callable[[], object], what: str = "", *, patience_seconds: float = _PATIENCE_SECONDS
    ) -> None:
        """Serve the window until something holds; no sleeping, but not forever either."""
        deadline = time.monotonic() + patience_seconds
        while not condition():
            self.app.root.update()
            assert time.monotonic() < deadline, f"never came: {what or condition}"

    def settle(self) -> None:
        """Serve the window until nothing waits to be built or drawn."""
        self.app.root.update()
        self.wait_until(lambda: self.app.context.pump.is_idle, "an idle pump")
        self.app.root.update()

    def open_page(self, key: str) -> object:
        """Open a page as a user does, by a click in the side bar, and wait until it is complete."""
        entry = self.app.shell.side_bar.entries[key]
        entry.event_generate("<Button-1>")
        self.settle()
        return self.app.shell.pages[key]


@pytest.fixture
def open_window(root: tk.Tk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Window]]:
    """Open windows one after the other; each is closed before the next opens, the last one at the end.

    The first one has the defaults in its form, whatever preset the program would begin with.
    """
    monkeypatch.setattr("ui.app.first_form", FormModel)
    opened: list[App] = []

    def close_last() -> None:
        if opened and not opened[-1]._is_closed:
            opened[-1].close()

    def opens(config_path: Path | None = None, *, with_dialogs: bool = False) -> Window:
        close_last()
        engine, asked = FakeEngine(), Recorder()
        interaction = None if with_dialogs else asked
        app = App(config_path=config_path, interaction=interaction, launch_run=engine.launch, root=root)
        opened.append(app)
        app.show()
        root.geometry("1100x740+0+0")
        window = Window(app, engine, asked)
        window.settle()
        return window

    yield opens
    close_last()


@pytest.fixture
def window(open_window: Callable[..., Window]) -> Window:
    """The window as it opens the first time."""
    return open_window()
