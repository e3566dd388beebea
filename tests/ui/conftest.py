"""Fixtures for tests of the window. Any logged error or error in a Tk callback fails its test."""

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
from PIL import Image

from modules.config.schema import Config
from tests.ui.fake_engine import FakeEngine
from tests.ui.recorder import Recorder
from tests.ui.tk_thread import check_threads, log_background_errors
from ui.app.window import App
from ui.forms.model import FormModel, Source
from ui.widgets.theme import Theme
from ui.widgets.window import create_root, switch_mode

_PATIENCE_SECONDS = 120.0  # of a computer with ten times as much to do; reached only where something hangs


class _ErrorCatcher(logging.Handler):
    """Records every logged error, including those in Tk callbacks."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(self.format(record))


def _log_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger(__name__).error("An error outside of any window", exc_info=(kind, error, trace))


@pytest.fixture(autouse=True)
def logged_errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Fail a test in which an error was logged, unless it reads and clears the list."""
    catcher = _ErrorCatcher()
    logging.getLogger().addHandler(catcher)
    monkeypatch.setattr(sys, "excepthook", _log_error)  # errors of listeners without a window
    yield catcher.messages
    logging.getLogger().removeHandler(catcher)
    assert not catcher.messages, "\n".join(catcher.messages)


@pytest.fixture(scope="session")
def tk_root() -> Iterator[tk.Tk]:
    """The only root of all tests: with several, after-scripts of destroyed roots fail."""
    root = create_root(Theme("dark"))
    log_background_errors(root)
    check_threads(root)
    yield root
    root.destroy()


@pytest.fixture
def root(tk_root: tk.Tk) -> Iterator[tk.Tk]:
    """The empty dark root, without the bindings of the last test."""
    switch_mode(tk_root, Theme("dark"), "dark")
    bound_everywhere = set(tk_root.bind_all())
    lasting = set(tk_root.winfo_children())  # they keep fonts open
    yield tk_root
    for child in set(tk_root.winfo_children()) - lasting:
        child.destroy()
    for sequence in set(tk_root.bind_all()) - bound_everywhere:
        tk_root.unbind_all(sequence)
    for sequence in tk_root.bind():
        tk_root.unbind(sequence)
    tk_root.update()
    tk_root.withdraw()


@dataclass
class Window:
    """The running window, driven by a test."""

    app: App
    engine: FakeEngine
    asked: Recorder

    def wait_until(
        self, condition: Callable[[], object], what: str = "", *, patience_seconds: float = _PATIENCE_SECONDS
    ) -> None:
        """Run the window until a condition holds, up to a limit.

        The pump turns at once instead of every 20 ms, and the other threads run while this one waits for events.
        """
        deadline = time.monotonic() + patience_seconds
        while not condition():
            self.app.root.update()
            if condition():
                return
            self._turn()
            assert time.monotonic() < deadline, f"timed out waiting for {what or condition}"

    def _turn(self) -> None:
        """Let the pump do one turn's work; with nothing to do, wait for an event, a millisecond at most."""
        pump, root = self.app.context.pump, self.app.root
        if not pump._is_stopped:
            pump.tick()
        if not pump._tasks:
            timer = root.after(1, lambda: None)
            root.tk.dooneevent(0)
            root.after_cancel(timer)

    def settle(self) -> None:
        """Run the window until nothing is left to build, check or draw."""
        context = self.app.context

        def is_settled() -> bool:
            for redraw in context.pump._redraws.values():
                redraw.not_before = 0.0  # as if the time between two redraws had passed
            is_read = not context.form.awaited
            return is_read and context.pump.is_idle and context.field_problems.is_current

        self.app.root.update()
        for _ in range(5):  # what is drawn may change the size of something else
            self.wait_until(is_settled, "an idle pump")
            self.app.root.update()
            if is_settled():
                return
        raise AssertionError(f"Each round leads to another: {[*context.pump._redraws, *context.pump._tasks]}")

    def open_page(self, key: str) -> object:
        """Open a page by a click in the side bar, and wait until it is complete.

        A page without an entry is opened as by its shortcut.
        """
        entry = self.app.shell.side_bar.entries.get(key)
        if entry is not None and entry.winfo_manager():
            entry.event_generate("<Button-1>")
        else:
            self.app.context.navigation.open(key)
        self.settle()
        return self.app.shell.pages[key]


@pytest.fixture
def open_window(root: tk.Tk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Window]]:
    """Open windows one at a time; each is closed before the next opens, the last one at the end.

    The first one has the default config, not the preset of a first start, and no card of first steps.
    """
    monkeypatch.setattr("ui.app.window.first_form", FormModel)
    # Each edit of each test would write a file; test_session_saving.py has the real thing.
    monkeypatch.setattr("ui.app.window.SessionSaver.follow_edits", lambda _saver: None)
    monkeypatch.setattr("ui.forms.field_problems.QUIET_SECONDS", 0.0)
    opened: list[App] = []

    def close_last() -> None:
        if opened and not opened[-1]._is_closed:
            opened[-1].close()

    def opens(config_path: Path | None = None, *, with_dialogs: bool = False, first_steps: str = "") -> Window:
        close_last()
        engine, asked = FakeEngine(), Recorder()
        interaction = None if with_dialogs else asked
        app = App(
            config_path=config_path,
            interaction=interaction,
            launch_run=engine.launch,
            launch_queued=engine.launch_child,
            root=root,
        )
        opened.append(app)
        app.preferences.change(first_steps=first_steps)
        app.show()
        root.geometry("1100x740+0+0")
        window = Window(app, engine, asked)
        window.settle()
        return window

    yield opens
    close_last()


@pytest.fixture
def window(open_window: Callable[..., Window]) -> Window:
    """The window of a first start with the default config."""
    return open_window()


@pytest.fixture
def ready(window: Window, tmp_path: Path) -> Window:
    """A window with a config that passes preflight."""
    images = tmp_path / "images"
    images.mkdir()
    for n in range(4):
        Image.new("RGB", (64, 64), (60 * n, 0, 0)).save(images / f"{n}.png")
        (images / f"{n}.txt").write_text(f"number {n}", encoding="utf-8")
    config = Config.model_validate(
        {
            "general": {"workspace_dir": str(tmp_path / "workspace"), "cache_dir": str(tmp_path / "cache")},
            "concepts": [{"path": str(images)}],
            "data": {"resolution_px": [64]},
            "output": {"destination": str(tmp_path / "lora.safetensors")},
            "sampling": {"prompts": [{"prompt": "a number"}]},
        }
    )
    window.app.form.load(config, Source("ready"))
    window.settle()
    return window
