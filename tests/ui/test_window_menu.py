"""What concerns the whole window: the scale, the side bar, the card of a message."""

from __future__ import annotations

import tkinter as tk

import pytest

from modules.config.schema import Config
from tests.ui.conftest import Window
from tests.ui.driving import fill, flip, inside, pick
from ui import __main__ as program
from ui.bars.side_bar import SCALES
from ui.forms.model import Source
from ui.pages.catalogue import PAGES
from ui.widgets.entry import Entry
from ui.widgets.focus import focused_widget
from ui.widgets.window import cancel_pending


def test_a_load_says_what_it_replaced_and_undo_brings_it_back(window: Window) -> None:
    app, bar = window.app, window.app.shell.notice_bar
    app.form.edit("training.epochs", 7)
    app.context.actions.run("demo")
    window.settle()
    assert bar.winfo_ismapped()
    [line] = bar.lines
    assert line.text.cget("text") == "Loaded #demo. It replaced Untitled with 1 unsaved change."
    line.buttons["Undo"].invoke()
    window.settle()
    assert app.form.config.training.epochs == 7
    assert app.form.is_changed
    assert not bar.winfo_ismapped()


def test_the_scale_is_chosen_in_the_menu_and_applies_to_the_window_that_reopens(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    menu, bar = window.app.shell.side_bar.make_window_menu(), window.app.shell.notice_bar
    labels = [str(menu.entrycget(i, "label")) for i in range(menu.index("end")) if menu.type(i) == "command"]
    assert [label.strip("✓ ") for label in labels if "Scale" in label][1:] == [f"Scale {n} %" for n in SCALES[1:]]
    menu.invoke(next(i for i in range(menu.index("end")) if "150" in str(menu.entryconfigure(i).get("label", ""))))
    window.settle()
    assert window.app.preferences.now.scale_percent == 150
    [line] = bar.lines
    assert "when the window is opened again" in line.text.cget("text")
    line.buttons["Reopen now"].invoke()
    assert window.app._is_closed
    assert window.app.wants_reopen


def test_nothing_that_was_scheduled_runs_in_the_next_window(root: tk.Tk) -> None:
    root.after(10**6, root.update)
    root.after_idle(root.update)
    cancel_pending(root)
    assert root.tk.call("after", "info") in ("", ())


def test_the_program_opens_the_window_again_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []

    class Opened:
        def __init__(self, config_path: object) -> None:
            paths.append(config_path)
            self.wants_reopen = len(paths) == 1

        def show(self, on_visible: object) -> None: ...

        def run(self) -> None: ...

    monkeypatch.setattr(program, "App", Opened)
    assert program.main(["some.json"]) == 0
    assert len(paths) == 2
    assert paths[1] is None  # the session has it


def test_entries_show_their_shortcut_instead_of_a_tip_and_top_bar_links_focus(window: Window) -> None:
    entry = window.app.shell.side_bar.entries["data"]
    entry.event_generate("<Enter>")
    assert entry.shown_shortcut == "Ctrl+3"
    entry.event_generate("<Leave>")
    assert entry.shown_shortcut == ""
    assert {page.section_title for page in PAGES} == {"Settings", "Work"}
    choices = window.app.shell.top_bar.choices
    window.app.root.focus_force()
    assert window.app.context.navigation.go_to("training.trains")
    window.app.root.update()
    focused = focused_widget(window.app.root)
    assert focused is not None
    assert str(focused).startswith(str(choices["training.trains"]))
    pick(choices["training.trains"], "vae")
    window.settle()
    assert not choices["training.method"].winfo_ismapped()  # the VAE has its own
    assert choices["model.family"].winfo_ismapped()


def test_a_switch_has_its_knob_inside_the_track(window: Window) -> None:
    switch = window.app.shell.side_bar.advanced_switch
    canvas: tk.Canvas = switch._canvas
    width = int(canvas.cget("width"))

    def knob() -> tuple[float, float]:
        x, y = canvas.coords("slider_oval_1_a")[:2]
        return x, y

    assert knob() == (11.0, 11.0)
    assert canvas.itemcget("progress_parts", "fill") == window.app.theme.colour("switch")
    flip(switch)
    assert knob() == (width - 11.0, 11.0)
    assert canvas.itemcget("progress_parts", "fill") == window.app.theme.colour("accent")


def test_missing_files_are_said_while_typing_at_the_field_and_in_the_list(window: Window) -> None:
    page = window.open_page("model")
    bar, findings = window.app.shell.findings_bar, window.app.context.findings
    row = page.form_view.reveal("model.base_model")  # type: ignore[attr-defined]
    fill(inside(row.control.frame, Entry), "no/such/model.safetensors")
    window.settle()
    assert row._reason.cget("text").startswith("The base model no/such/model.safetensors does not exist.")
    assert row._mark.token == "error"
    assert bar.winfo_ismapped()
    assert [f.place for f in findings.items] == ["Model › Base model"]
    assert window.app.shell.side_bar.entries["model"]._dot.cget("text") == "!"
    bar.close_button.invoke()
    window.app.form.edit("training.epochs", 7)
    window.settle()
    assert not bar.winfo_ismapped()  # dismissed, and nothing new
    window.app.form.edit("training.learning_rate", 5.0)
    window.settle()
    assert {f.place for f in findings.items} == {"Model › Base model", "Training › Learning rate"}
    window.app.form.load(Config(), Source())
    window.settle()
    assert not bar.winfo_ismapped()  # fixed
