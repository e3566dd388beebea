"""What takes long is done in parts: pages, and the change between dark and light."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.ui.conftest import Window
from ui.app.shell import prepare_pages
from ui.loop.pump import Pump


@pytest.fixture
def slow(window: Window, monkeypatch: pytest.MonkeyPatch) -> Window:
    """A window on a machine that is so slow that each slice of work is one step."""
    monkeypatch.setattr("ui.loop.pump.FIRST_SLICE_SECONDS", 1e-9)
    window.app.context.pump.tick()
    return window


def test_a_start_opens_the_run_page_in_parts(slow: Window) -> None:
    app = slow.app
    app.context.navigation.open("run")
    page: Any = app.shell.pages["run"]
    parts = ("curves", "metrics", "log", "facts", "samples", "rollout")
    has = [name for name in parts if hasattr(page, name)]
    assert len(has) < len(parts)
    page.on_show()  # and a redraw of what is not there
    app.context.pump.tick(budget_seconds=0.0)
    assert not hasattr(page, "rollout")
    assert app.shell.page("run") is page  # other code gets all of a page
    assert all(hasattr(page, name) for name in parts)
    slow.settle()
    assert page.frame.winfo_ismapped()
    assert not page.curves_card.is_offered("Rewards")


def test_a_page_that_is_opened_is_complete_once_the_pump_is_idle(slow: Window) -> None:
    page: Any = slow.open_page("run")
    assert page.log.winfo_ismapped()
    assert page.facts.cget("text")


def test_hidden_pages_change_between_dark_and_light_over_many_turns(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, theme = window.app, window.app.theme
    hidden: Any = window.open_page("training")
    shown: Any = window.open_page("output")
    tasks: list[Iterator[None]] = []
    monkeypatch.setattr(app.context.pump, "work_through", lambda _key, task: tasks.append(task))
    app.context.preferences.change(appearance="light")
    assert theme.mode == "light"
    (task,) = tasks
    next(task)
    assert str(shown.frame.cget("background")) == theme.colour("window")
    assert str(hidden.frame.cget("background")) != theme.colour("window")
    row = next(hidden.form_view.rows())
    fields = [r.control.frame for r in hidden.form_view.rows() if hasattr(r.control.frame, "_canvas")]
    assert fields
    assert len(list(task)) > len(fields)
    assert str(hidden.frame.cget("background")) == theme.colour("window")
    assert str(row._label.cget("background")) == theme.colour("card")
    assert {str(field._canvas.cget("background")) for field in fields} == {theme.colour("card")}


def test_new_concepts_are_drawn_once(window: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page: Any = window.open_page("concepts")
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    drawn: list[int] = []
    show = page.grid.show
    monkeypatch.setattr(page.grid, "show", lambda cards: (drawn.append(len(cards)), show(cards)))
    page.model.add_folders(folders)
    assert drawn == [3]
    assert page.selected_indices == [0, 1, 2]


def test_the_modules_of_all_pages_are_imported_in_the_background_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    imported: list[str] = []
    threads: set[int] = set()

    def import_module(name: str) -> None:
        imported.append(name)
        threads.add(threading.get_ident())

    monkeypatch.setattr("ui.app.shell.importlib", SimpleNamespace(import_module=import_module))
    pump = Pump(lambda _ms, _call: None)
    prepare_pages(pump)
    pump.tick()
    assert not imported  # the window is still being drawn
    deadline = time.monotonic() + 120
    while "ui.features.choose.page" not in imported and time.monotonic() < deadline:
        before = len(imported)
        for redraw in pump._redraws.values():
            redraw.not_before = 0.0  # as if the pause were over
        pump.tick()
        assert len(imported) <= before + 1
    assert {"ui.features.run.page", "ui.features.concepts.page", "ui.features.generate.page", "ui.forms.form_page"} <= {
        *imported
    }
    assert len(imported) == len({*imported})
    assert threading.get_ident() not in threads
