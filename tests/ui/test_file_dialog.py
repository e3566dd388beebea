"""Load… through Tk's own file dialog on Linux, whose widgets tkinter does not know."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import save_file
from modules.config.schema import Config
from tests.ui.conftest import Window
from tests.ui.driving import expected, inside, shown_by, walk
from tests.ui.real_input import FILE_ENTRY, answer_file_dialog_by_hand, click, keys
from tests.ui.window_managers import managed
from ui.forms.fields import Row
from ui.widgets.controls import Button
from ui.widgets.entry import Entry
from ui.widgets.focus import focused_widget
from ui.widgets.tk_interaction import TkInteraction

CONFIGS = {
    "fine-tune.json": Config.model_validate(
        {
            "general": {"notes": "All weights.\nSlowly."},
            "training": {"trains": "full", "learning_rate": 1e-6, "epochs": 3},
            "adapter": {"rank": 4, "alpha": 2},
        }
    ),
    "lora.json": Config.model_validate(
        {
            "general": {"notes": "A small file."},
            "training": {"trains": "adapter", "learning_rate": 3e-4, "epochs": 40},
            "adapter": {"rank": 64, "alpha": 32},
        }
    ),
}
PAGES = (
    "model",
    "data",
    "training",
    "adapter",
    "general",
)  # general last: it stays open while a file is loaded


@pytest.fixture(params=["no window manager", "window manager"])
def screen(root: tk.Tk, request: pytest.FixtureRequest) -> Iterator[None]:
    """The display with and without a window manager. Request it before the window."""
    with ExitStack() as stack:
        if request.param == "window manager":
            stack.enter_context(managed(root))
        yield


@pytest.fixture
def loading(open_window: Callable[..., Window], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Window:
    """The window with its real dialogs and every page of `PAGES` built, and a folder with two configs."""
    # An error fails the test through the log; its dialog would wait for an answer.
    monkeypatch.setattr(TkInteraction, "show_failure", lambda _self, _failure: None)
    for name, config in CONFIGS.items():
        save_file(config, tmp_path / name)
    window = open_window(with_dialogs=True)
    window.app.root.geometry("1100x740+-210+0")  # the screen may be narrow
    window.app.preferences.change(last_folder=str(tmp_path), show_advanced=True)
    for key in PAGES:
        window.open_page(key)
    return window


def rows(window: Window) -> dict[str, Row]:
    """Return every row of the built pages, by path."""
    pages: list[Any] = [window.app.shell.pages[key] for key in PAGES]
    return {row.record.path: row for page in pages for row in page.form_view.rows()}


def load_by_hand(window: Window, name: str) -> list[str]:
    """Leave the focus in a page that is no longer shown, press Load…, and give the dialog the name of a file.

    When the dialog closes, Tk cannot give the focus back to an entry that is hidden, and leaves it with the dialog.
    Returns where the focus was while the widgets were updated.
    """
    focus: list[str] = []
    window.open_page("training")
    epochs = inside(rows(window)["training.epochs"].control.frame, Entry).tk_entry
    click(window, epochs)
    window.wait_until(lambda: focused_widget(window.app.root) is epochs, "the focus")
    keys(window, "ctrl+1")
    assert window.app.context.navigation.page == "general"
    unwatch = window.app.form.watch("general.notes", lambda: focus.append(str(window.app.root.tk.call("focus"))))
    answer_file_dialog_by_hand(window.app.root, name)
    bar = window.app.shell.top_bar
    load = next(w for w in walk(bar) if isinstance(w, Button) and w.cget("text") == "Load…")
    click(window, load, from_left_px=4)  # beside its label, where a click does not move the focus
    window.wait_until(lambda: window.app.form.source.name == Path(name).stem, "the config")
    window.settle()
    unwatch()
    return focus


def test_every_widget_shows_what_was_loaded_by_the_dialog(screen: None, loading: Window) -> None:
    for name, config in CONFIGS.items():
        focus_then = load_by_hand(loading, name)
        assert loading.app.form.config == config
        shown = {path: shown_by(row) for path, row in rows(loading).items()}
        wanted = {path: expected(row.record, loading.app.form.value(path)) for path, row in rows(loading).items()}
        assert shown == wanted
        training, adapter = config.training, config.adapter
        assert shown["general.notes"] == config.general.notes
        assert float(shown["training.learning_rate"]) == training.learning_rate
        assert shown["adapter.rank"] == str(adapter.rank)  # type: ignore[union-attr]
        top = loading.app.shell.top_bar
        assert top.choices["training.trains"].get() == {"full": "Fine-tune", "adapter": "LoRA"}[training.trains]
        assert top.preset_button.cget("text").startswith(Path(name).stem)
        assert focus_then == [FILE_ENTRY], "the focus was elsewhere, so this test proves nothing"


def test_a_shortcut_that_is_pressed_in_the_file_dialog_is_not_for_the_window(loading: Window) -> None:
    answer_file_dialog_by_hand(loading.app.root, "lora.json", first=("ctrl+2",))
    loading.app.context.actions.run("load")
    loading.settle()
    assert loading.app.form.source.name == "lora"
    assert loading.app.context.navigation.page == "general"
