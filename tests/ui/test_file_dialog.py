"""The file dialog, driven by real events: loading configs, choosing folders and images, saving over a file."""

from __future__ import annotations

import threading
import tkinter as tk
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.codec import save_file
from modules.config.schema import Config
from tests.ui.conftest import Window
from tests.ui.driving import expected, inside, shown_by, walk
from tests.ui.real_input import answer_file_dialog_by_hand, click, keys
from tests.ui.window_managers import managed
from ui.forms.fields import Row
from ui.loop.interaction import REPLACE_FILE
from ui.widgets.controls import Button
from ui.widgets.dialog import Dialog
from ui.widgets.entry import Entry
from ui.widgets.files.board import FileBoard
from ui.widgets.files.browser import Browser
from ui.widgets.files.dialog import FileDialog
from ui.widgets.files.listing import Contents, Counts, read_folder
from ui.widgets.files.listing import Entry as FileEntry
from ui.widgets.panel import focused_widget
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
PAGES = ("model", "data", "training", "output")  # the last one stays open while a file is loaded
_POLL_MS, _MAX_POLLS = 10, 12_000  # two minutes, as elsewhere


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
    window.app.preferences.change(last_folder=str(tmp_path), show_advanced=True)
    for key in PAGES:
        window.open_page(key)
    return window


def rows(window: Window) -> dict[str, Row]:
    """Return every row of the built pages, by path."""
    pages: list[Any] = [window.app.shell.pages[key] for key in PAGES]
    return {row.record.path: row for page in pages for row in page.form_view.rows()}


def load_by_hand(window: Window, name: str) -> None:
    """Leave the focus in a page that is no longer shown, press Load…, and give the dialog the name of a file."""
    window.open_page("data")
    resolution = inside(rows(window)["data.resolution_px"].control.frame, Entry).tk_entry
    click(window, resolution)
    window.wait_until(lambda: focused_widget(window.app.root) is resolution, "the focus")
    keys(window, "ctrl+1")
    assert window.app.context.navigation.page == "home"
    answer_file_dialog_by_hand(window.app.root, name)
    bar = window.app.shell.top_bar
    load = next(w for w in walk(bar) if isinstance(w, Button) and w.cget("text") == "Load…")
    click(window, load, from_left_px=4)  # beside its label, where a click does not move the focus
    window.wait_until(lambda: window.app.form.source.name == Path(name).stem, "the config")
    window.settle()


@pytest.mark.full
def test_every_widget_shows_what_was_loaded_by_the_dialog(screen: None, loading: Window) -> None:
    for name, config in CONFIGS.items():
        load_by_hand(loading, name)
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


@pytest.mark.full
def test_a_shortcut_that_is_pressed_in_the_file_dialog_is_not_for_the_window(loading: Window) -> None:
    answer_file_dialog_by_hand(loading.app.root, "lora.json", first=("ctrl+2",))
    loading.app.context.actions.run("load")
    loading.settle()
    assert loading.app.form.source.name == "lora"
    assert loading.app.context.navigation.page == PAGES[-1]


def when_shown(window: Window, *steps: Callable[[FileDialog], Callable[[], bool] | None]) -> None:
    """Run steps in the next file dialog, each once the condition that the last one returned holds."""
    root = window.app.root
    pending = list(steps)

    def look(condition: Callable[[], bool], polls_left: int) -> None:
        dialog = next((w for w in root.winfo_children() if isinstance(w, FileDialog) and w.grab_status()), None)
        if dialog is not None and dialog.path.get() and condition():
            if pending:
                try:
                    condition = pending.pop(0)(dialog) or (lambda: True)
                except BaseException:
                    dialog.close()  # the error fails the test; its own dialog would wait
                    raise
                look(condition, _MAX_POLLS)
        elif polls_left:
            root.after(_POLL_MS, look, condition, polls_left - 1)
        elif dialog is not None:
            dialog.close()

    root.after(_POLL_MS, look, lambda: True, _MAX_POLLS)


def press(widget: tk.Misc, *names: str) -> None:
    """Press keys in a widget."""
    widget.focus_force()
    widget.update()
    for name in names:
        widget.event_generate(f"<{name}>")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for name in ("cats", "dogs", ".hidden"):
        (folder / name).mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (20, 30), "red").save(folder / "cats" / f"{number}.png")
    (folder / "cats" / "1.txt").write_text("a cat")
    (folder / "sub.json").write_text("{}")
    return folder


def test_a_page_of_the_file_list_keeps_one_row_in_view(window: Window) -> None:
    browser = Browser("open", Path("/"))
    browser.show(Contents(Path("/"), tuple(FileEntry("/", f"{n}.json", is_folder=False) for n in range(100))))
    top, noop = tk.Toplevel(window.app.root), lambda *_: None
    board = FileBoard(
        top, window.app.theme, window.app.context.pump, browser,
        detail_of=lambda _entry: "", on_select=noop, on_activate=noop,
    )  # fmt: skip
    board.pack(fill="both", expand=True)
    for as_tiles, size in ((False, "500x360"), (True, "500x520")):
        board.as_tiles = as_tiles
        top.geometry(f"{size}+0+0")
        browser.select(0)
        board.show_folder()
        window.settle()
        layout = board.layout()
        num_visible = board.canvas.winfo_height() // layout.row_px * layout.num_columns
        press(board.canvas, "Next")
        last = browser.cursor
        assert last == num_visible - layout.num_columns
        assert board.top == 0  # it was visible
        press(board.canvas, "Next")
        window.settle()
        assert last in board.visible(layout)
        assert browser.cursor == 2 * last
        press(board.canvas, "Prior", "Prior")
        assert browser.cursor == 0
    top.destroy()


def test_folders_show_their_images_and_are_chosen_by_keys(
    open_window: Callable[..., Window], images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TkInteraction, "show_failure", lambda _self, _failure: None)
    window = open_window(with_dialogs=True)
    ask = window.app.context.interaction
    seen: list[object] = []

    def enter_cats(dialog: FileDialog) -> Callable[[], bool]:
        assert [e.name for e in dialog.browser.shown] == ["cats", "dogs"]
        press(dialog.board.canvas, "Key-c", "Return")
        return lambda: dialog.browser.folder == images / "cats" and len(dialog.board.photos.loaded) == 3

    def look_and_leave(dialog: FileDialog) -> Callable[[], bool]:
        seen.extend([dialog.board.as_tiles, dialog.status.cget("text")])
        press(dialog.board.canvas, "BackSpace")
        return lambda: dialog.browser.folder == images and dialog._counts.get(images / "cats") is not None

    def choose_both(dialog: FileDialog) -> None:
        assert dialog.browser.shown[dialog.browser.cursor].name == "cats"  # where it came from
        seen.append(dialog._detail(dialog.browser.shown[0]))
        press(dialog.board.canvas, "Home", "Shift-Down")
        dialog.buttons["ok"].invoke()

    when_shown(window, enter_cats, look_and_leave, choose_both)
    assert ask.ask_folders("Folders", images) == (images / "cats", images / "dogs")
    assert seen == [True, "3 images, 1 caption here", "3 images, 1 caption"]
    preferences = window.app.preferences
    assert preferences.recent_folders == (str(images / "cats"),)
    for folder in (images, images / "cats"):
        preferences.note_folder(folder)
    assert preferences.recent_folders == (str(images / "cats"), str(images)), "each once, the newest first"

    def complete(dialog: FileDialog) -> Callable[[], bool]:
        dialog.path.set(f"{images}/do")
        press(dialog.path_entry.tk_entry, "Tab")
        return lambda: dialog.path.get() == f"{images}/dogs/"

    def type_a_path_over_the_list(dialog: FileDialog) -> Callable[[], bool]:
        dialog.board.canvas.focus_force()
        press(dialog.board.canvas, "Key-slash")
        assert dialog.path.get() == "/"
        return lambda: dialog.focus_get() is dialog.path_entry.tk_entry

    def open_nowhere(dialog: FileDialog) -> None:
        dialog.path.set(f"{images}/nowhere")
        press(dialog.path_entry.tk_entry, "Return")
        assert dialog.status.cget("text") == f"{images}/nowhere does not exist."
        press(dialog.board.canvas, "Escape")

    when_shown(window, complete, type_a_path_over_the_list, open_nowhere)
    assert ask.ask_folder("Folder", images) is None


def test_a_new_folder_is_created_by_keys_and_chosen(
    open_window: Callable[..., Window], images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TkInteraction, "show_failure", lambda _self, _failure: None)
    window = open_window(with_dialogs=True)
    seen: list[str] = []

    def name_it(dialog: FileDialog) -> Callable[[], bool]:
        press(dialog, "Control-N")
        entry = dialog.new_folder_bar.entry.tk_entry
        dialog.new_folder_bar.name.set("cats")
        press(entry, "Return")
        seen.append(dialog.new_folder_bar.message.cget("text"))
        dialog.new_folder_bar.name.set("birds")
        press(entry, "Return")
        assert not dialog.new_folder_bar.winfo_ismapped()
        return lambda: [dialog.browser.shown[n].name for n in dialog.browser.selected] == ["birds"]

    def leave_the_name_then_choose(dialog: FileDialog) -> None:
        dialog.new_folder_button.invoke()
        press(dialog.new_folder_bar.entry.tk_entry, "Escape")
        assert dialog.winfo_exists()
        dialog.buttons["ok"].invoke()

    when_shown(window, name_it, leave_the_name_then_choose)
    assert window.app.context.interaction.ask_folder("Folder", images) == images / "birds"
    assert seen == [f"A folder named cats is already in {images}. Type another name."]

    def save_into_it(dialog: FileDialog) -> Callable[[], bool]:
        assert not dialog.create_folder("saved")
        return lambda: dialog.browser.folder == images / "saved"

    def save(dialog: FileDialog) -> None:
        dialog.buttons["ok"].invoke()

    when_shown(window, save_into_it, save)
    saved = window.app.context.interaction.ask_save_file("Save", images / "new.json", (("Config", "*.json"),))
    assert saved == images / "saved" / "new.json"


def test_a_file_is_replaced_only_after_a_question(open_window: Callable[..., Window], images: Path) -> None:
    window = open_window(with_dialogs=True)
    asked: list[str] = []

    def question(dialog: FileDialog) -> Dialog | None:
        return next((w for w in dialog.winfo_children() if isinstance(w, Dialog) and w.winfo_viewable()), None)

    def answered_by(dialog: FileDialog, name: str) -> None:
        shown = question(dialog)
        if shown is None:
            dialog.after(10, answered_by, dialog, name)
        else:
            asked.append(str(shown.title()))
            shown.buttons[name].invoke()

    def keep_then_replace(dialog: FileDialog) -> None:
        assert dialog.name.get() == "sub.json"
        dialog.name.set("sub")
        for name in ("cancel", "replace"):
            dialog.after(10, answered_by, dialog, name)
            dialog.buttons["ok"].invoke()

    when_shown(window, keep_then_replace)
    kinds = (("Config", "*.json"),)
    assert window.app.context.interaction.ask_save_file("Save", images / "sub.json", kinds) == images / "sub.json"
    assert asked == [REPLACE_FILE] * 2
    assert (images / "sub.json").read_text() == "{}"  # the caller writes


def test_what_is_typed_while_a_folder_is_read_stays(
    open_window: Callable[..., Window], images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing of a slow folder used to replace a path, and the count of its images a name."""
    window = open_window(with_dialogs=True)
    may_read = threading.Event()

    def read_slowly(folder: Path, **options: Any) -> Contents:
        may_read.wait(60)
        return read_folder(folder, **options)

    def type_a_path(dialog: FileDialog) -> Callable[[], bool]:
        monkeypatch.setattr("ui.widgets.files.dialog.read_folder", read_slowly)
        dialog.open(images / "cats")
        press(dialog, "Control-l")
        dialog.path.set("sub.js")
        may_read.set()
        return lambda: dialog.browser.folder == images / "cats"

    def type_a_name(dialog: FileDialog) -> Callable[[], bool]:
        assert dialog.path.get() == "sub.js"
        dialog.open(images)  # as by a click on Up
        dialog.path.set("sub.jso")
        return lambda: dialog.browser.folder == images

    def finish(dialog: FileDialog) -> None:
        dialog.path.set(f"{images}/sub.json")
        dialog.buttons["ok"].invoke()

    when_shown(window, type_a_path, type_a_name, finish)
    assert window.app.context.interaction.ask_file("Open", images, (("Config", "*.json"),)) == images / "sub.json"

    def rename(dialog: FileDialog) -> None:
        dialog.browser.select(next(n for n, e in enumerate(dialog.browser.shown) if e.name == "sub.json"))
        dialog._follow_selection()
        dialog.name.set("other.json")
        dialog._show_counts(threading.Event(), images / "cats", Counts(3, 1))
        assert dialog.name.get() == "other.json"
        dialog.buttons["ok"].invoke()

    when_shown(window, rename)
    kinds = (("Config", "*.json"),)
    assert window.app.context.interaction.ask_save_file("Save", images / "new.json", kinds) == images / "other.json"


def test_a_typed_folder_is_chosen_by_the_button_unless_another_is_selected(
    open_window: Callable[..., Window], images: Path
) -> None:
    """Choose used to take the open folder and to forget what was typed."""
    window = open_window(with_dialogs=True)

    def type_and_choose(dialog: FileDialog) -> None:
        dialog.path.set(f"{images}/cats")
        dialog.buttons["ok"].invoke()

    when_shown(window, type_and_choose)
    assert window.app.context.interaction.ask_folder("Folder", images) == images / "cats"

    def type_then_select(dialog: FileDialog) -> None:
        dialog.path.set(f"{images}/cats")
        press(dialog.board.canvas, "Key-d")
        assert dialog.path.get() == str(images)
        dialog.buttons["ok"].invoke()

    when_shown(window, type_then_select)
    assert window.app.context.interaction.ask_folder("Folder", images) == images / "dogs"
