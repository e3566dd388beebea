"""The widgets with behaviour of their own: dialogs, the folder picker, tooltips, the chart, the log, the grid."""

from __future__ import annotations

import os
import sys
import tkinter as tk
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from PIL import Image, ImageTk

from modules.system.problem import Problem
from tests.ui.conftest import Window
from tests.ui.driving import tip_of, walk
from trainer.events import SampleReady
from trainer.log_lines import LogLine
from trainer.preflight import Preview
from trainer.preflight.report import RunFigures
from ui.features.run.sample_grid import SampleGrid, SampleTable
from ui.loop.interaction import Answer, Failure
from ui.loop.series import Series
from ui.loop.wording import start_figures
from ui.widgets import dialog
from ui.widgets.auto_bar import AutoBar
from ui.widgets.canvas import DrawnCanvas
from ui.widgets.card import Card
from ui.widgets.controls import Button, Choice, Switch
from ui.widgets.dialog import Dialog
from ui.widgets.entry import Entry
from ui.widgets.fitted_text import FittedText, shorten
from ui.widgets.grid import Grid
from ui.widgets.image_grid import ImageGrid, Tile
from ui.widgets.link_columns import Link, LinkColumns
from ui.widgets.log import LogView, lines_after
from ui.widgets.panel import Panel, Text, call_later
from ui.widgets.plot import Plot
from ui.widgets.plot_model import Column as ReadoutColumn
from ui.widgets.plot_model import Line
from ui.widgets.plot_pointer import draw_readout
from ui.widgets.run_figures import NOTHING_YET, run_figure
from ui.widgets.scroll import ScrollFrame, bind_wheel
from ui.widgets.shapes import Shapes
from ui.widgets.table import Column, Table
from ui.widgets.tabs import TabbedCard
from ui.widgets.textarea import TextArea
from ui.widgets.theme import Theme
from ui.widgets.thumbnails import load_covering, load_fitted
from ui.widgets.tk_interaction import FileServices, TkInteraction
from ui.widgets.tooltip import Tooltips
from ui.widgets.window import FRAME_PX, bind_clicks, bind_keypad, fitting_geometry, place


@pytest.fixture
def theme() -> Theme:
    return Theme("dark")


@pytest.fixture
def screen(root: tk.Tk) -> tk.Tk:
    root.geometry("900x640+0+0")
    root.deiconify()
    root.update()
    return root


def when_open(root: tk.Tk, act: Callable[[Any], object]) -> None:
    """Act on the next dialog as soon as it is visible."""

    def look() -> None:
        dialogs = [w for w in root.winfo_children() if isinstance(w, Dialog) and w.winfo_viewable()]
        if dialogs:
            act(dialogs[0])
        else:
            root.after(5, look)

    root.after(5, look)


def texts_in(widget: tk.Misc) -> str:
    return "\n".join(str(w.cget("text")) for w in walk(widget) if isinstance(w, Text))


def test_a_question_is_answered_by_its_buttons(screen: tk.Tk, theme: Theme) -> None:
    ask = TkInteraction(screen, theme)
    answers = (Answer("no", "No"), Answer("yes", "Yes", is_default=True))
    when_open(screen, lambda d: d.buttons["no"].invoke())
    assert ask.choose("Really?", "It matters.", answers, "warning") == "no"
    when_open(screen, lambda d: (d.focus_force(), d.update(), d.event_generate("<Return>")))
    assert ask.choose("Really?", "", answers) == "yes"
    when_open(screen, lambda d: (d.focus_force(), d.update(), d.event_generate("<Escape>")))
    assert ask.choose("Really?", "", answers) is None
    assert [w for w in screen.winfo_children() if isinstance(w, tk.Toplevel)] == []


def test_a_window_that_a_click_opens_keeps_the_focus(screen: tk.Tk, theme: Theme) -> None:
    """With the focus in an entry, a list that was opened by its label got no keys: Escape did not close it."""
    bind_clicks(screen)
    entry, label = Entry(screen, theme, tk.StringVar(screen)), Text(screen, theme, "Open")
    opened: list[tk.Toplevel] = []
    beside = Text(screen, theme, "Beside")
    label.bind("<Button-1>", lambda _e: opened.append(tk.Toplevel(screen)))
    for widget in (entry, label, beside):
        widget.pack()
    screen.update()
    entry.tk_entry.focus_force()
    screen.update()
    label.event_generate("<Button-1>")
    assert screen.focus_lastfor() is entry.tk_entry
    label.event_generate("<ButtonRelease-1>")
    opened.append(tk.Toplevel(screen))  # as the tooltip, which the pointer opened before the click
    opened[-1].withdraw()
    beside.event_generate("<Button-1>")
    assert screen.focus_lastfor() is screen
    for widget in (entry, label, beside, *opened):
        widget.destroy()
    for sequence in ("<Button-1>", "<ButtonRelease-1>", "<KeyRelease>"):
        screen.unbind_all(sequence)


def test_enter_of_the_number_pad_is_return(screen: tk.Tk, theme: Theme) -> None:
    """In dialogs, lists and texts it did nothing."""
    bind_keypad(screen)
    ask, answers = TkInteraction(screen, theme), (Answer("no", "No"), Answer("yes", "Yes", is_default=True))
    when_open(screen, lambda d: (d.focus_force(), d.update(), d.event_generate("<KP_Enter>")))
    assert ask.choose("Really?", "", answers) == "yes"
    pressed: list[str] = []
    button = Button(screen, theme, "Go", lambda: pressed.append("go"))
    text = tk.Text(screen)
    text.bind("<Control-Return>", lambda _e: pressed.append("generate") or "break")  # type: ignore[func-returns-value]
    for widget in (button, text):
        widget.pack()
    screen.update()
    for focused, sequence in ((button._canvas, "<KP_Enter>"), (text, "<KP_Enter>"), (text, "<Control-KP_Enter>")):
        focused.focus_force()
        screen.update()
        focused.event_generate(sequence)
    assert pressed == ["go", "generate"]
    assert text.get("1.0", "end-1c") == "\n"
    for widget in (button, text):
        widget.destroy()
    screen.unbind_all("<KP_Enter>")


def test_a_page_stays_where_it_is_when_the_focus_comes_back(screen: tk.Tk, theme: Theme) -> None:
    """Who typed, scrolled down and chose from a menu there found the page scrolled up to what was typed."""
    bind_wheel(screen)
    frame = ScrollFrame(screen, theme)
    frame.place(x=0, y=0, width=300, height=200)
    entries = [Entry(frame.body, theme, tk.StringVar(screen)) for _ in range(2)]
    for entry in entries:
        entry.pack(pady=(0, 900))
    screen.update()
    top, bottom = (entry.tk_entry for entry in entries)
    top.focus_force()
    screen.update()
    frame.scroll_px(400)
    before = frame.canvas.canvasy(0)
    dialog = tk.Toplevel(screen)
    dialog.focus_force()
    screen.update()
    dialog.destroy()
    top.focus_force()
    screen.update()
    assert frame.canvas.canvasy(0) == before > 0
    for entry in (bottom, top):  # as by Tab
        entry.focus_force()
        screen.update()
        place = entry.winfo_rooty() - frame.canvas.winfo_rooty()
        assert 0 <= place < 200
    frame.destroy()
    for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>", "<FocusIn>"):
        screen.unbind_all(sequence)


def test_a_line_of_text(screen: tk.Tk, theme: Theme) -> None:
    def answer(dialog: Any) -> None:
        entry = next(w for w in walk(dialog) if isinstance(w, Entry))
        assert entry.tk_entry.get() == "old"
        entry.tk_entry.delete(0, "end")
        entry.tk_entry.insert(0, "new")
        dialog.buttons["ok"].invoke()

    when_open(screen, answer)
    assert TkInteraction(screen, theme).ask_text("Name", "Which?", "old") == "new"
    when_open(screen, lambda d: d.buttons["cancel"].invoke())
    assert TkInteraction(screen, theme).ask_text("Name", "Which?", "old") is None


def test_the_start_dialog_shows_warnings_and_preview(screen: tk.Tk, theme: Theme) -> None:
    warnings = [Problem("x", f"Warning {n}.", "warning", "Mind it.") for n in range(10)]
    figures = RunFigures(7_300.0, 9_100_000_000, 8_000_000_000, on_gpu=True)
    preview = Preview(12, 4, 1, (("64x64", 12),), (("a.png", "broken"),), 12, 1200, figures=figures)
    seen: list[str] = []
    when_open(screen, lambda d: (seen.append(texts_in(d)), d.buttons["start"].invoke()))
    assert TkInteraction(screen, theme).confirm_start(warnings, preview)
    for words in (
        "Warning 0. Mind it.",
        "and 2 more",
        "12 images, 1,200 steps in total",
        "4 validation images",
        "Steps",
        "2 hours",
        "9.1 of 8 GB",
        "Memory of the card",
    ):
        assert words in seen[0]
    when_open(screen, lambda d: d.buttons["back"].invoke())
    assert not TkInteraction(screen, theme).confirm_start(warnings, None)


def test_the_dialog_before_a_run_is_resumed_has_what_is_left(screen: tk.Tk, theme: Theme) -> None:
    """It had the button Start and the number of all steps, next to the time of those that are left."""
    preview = Preview(12, 0, 0, (), (), 12, 1200, done_steps=900)
    seen: list[str] = []
    when_open(screen, lambda d: (seen.extend((texts_in(d), d.buttons["start"].cget("text"))), d.close()))
    TkInteraction(screen, theme).confirm_start([Problem("x", "Mind it.", "warning")], preview, resumes=True)
    text, button = seen
    for words in ("Before you resume", "Steps left", "300", "1,200 steps in total, 300 of them left"):
        assert words in text
    assert button == "Resume"


def test_the_memory_of_a_tiny_run_is_as_in_the_lines_about_it() -> None:
    figures = RunFigures(60.0, 50_100_000, 25_000_000_000, on_gpu=False)
    preview = Preview(12, 4, 1, (("64x64", 12),), (), 12, 1200, figures=figures)
    assert start_figures(preview)[-1] == ("Memory", "50 MB of 25 GB", False)
    unknown = replace(preview, figures=replace(figures, device_bytes=None))
    assert start_figures(unknown)[-1] == ("Memory", "50 MB", False)


def test_a_failure_offers_its_details(screen: tk.Tk, theme: Theme, tmp_path: Path, monkeypatch: Any) -> None:
    ask = TkInteraction(screen, theme)
    opened: list[Path] = []
    monkeypatch.setattr(ask, "open_path", opened.append)
    failure = Failure("It broke", "The memory ran out.", "Lower the batch size.", "all the details", tmp_path / "log")
    steps = iter(["copy", "open", "close"])

    def answer(dialog: Any) -> None:
        assert "The memory ran out." in texts_in(dialog)
        name = next(steps)
        if name != "close":
            when_open(screen, answer)
        dialog.buttons[name].invoke()

    when_open(screen, answer)
    ask.show_failure(failure)
    assert screen.clipboard_get() == "all the details"
    assert opened == [tmp_path / "log"]


def test_a_path_is_shown_if_no_program_can_open_it(screen: tk.Tk, theme: Theme, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", "")
    seen: list[str] = []

    def answer(dialog: Any) -> None:
        seen.append(next(w for w in walk(dialog) if isinstance(w, Entry)).tk_entry.get())
        dialog.buttons["ok"].invoke()

    when_open(screen, answer)
    TkInteraction(screen, theme).open_path(Path("/runs/one"))
    assert seen == [str(Path("/runs/one"))]


@pytest.mark.skipif(sys.platform != "linux", reason="the opener is xdg-open")
@pytest.mark.parametrize("code", [0, 3])
def test_a_path_is_shown_if_the_opener_fails(
    code: int, screen: tk.Tk, theme: Theme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """xdg-open is there on many machines that have no file manager: nothing happened at all."""
    opener = tmp_path / "xdg-open"
    opener.write_text(f"#!/bin/sh\nexit {code}\n")
    opener.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    lasting = SimpleNamespace(run=lambda work, done, _failed: done(work()))
    ask = TkInteraction(screen, theme)
    ask.serve_files(cast("FileServices", SimpleNamespace(pump=SimpleNamespace(lasting=lasting))))
    shown: list[Path] = []
    monkeypatch.setattr(ask, "_show_path", shown.append)
    ask.open_path(Path("/runs/one"))
    assert shown == ([Path("/runs/one")] if code else [])


def test_a_tip_appears_after_a_while_and_leaves_with_the_pointer(screen: tk.Tk, theme: Theme) -> None:
    tips = Tooltips(screen, theme)
    button = Button(screen, theme, "Press", lambda: None)
    button.pack()
    tips.attach(button, lambda: "What it does")
    screen.update()
    button._canvas.event_generate("<Enter>", rootx=20, rooty=20)
    waited = tk.BooleanVar(master=screen)
    screen.after(700, lambda: waited.set(True))
    screen.wait_variable(waited)
    screen.update()
    assert tip_of(screen) == "What it does"
    button._canvas.event_generate("<Leave>")
    screen.update()
    assert tip_of(screen) == ""

    def waits_after(*events: tuple[tk.Misc, str]) -> bool:
        for widget, event in events:
            widget.event_generate(event, x=5, y=5, rootx=20, rooty=20)
        return bool(tips._waiting)

    beside = tk.Frame(screen, width=20, height=20)
    beside.pack()
    screen.update()
    assert waits_after((button._canvas, "<Enter>"))
    assert not waits_after((button._canvas, "<Button-1>"), (button._canvas, "<Leave>"), (button._canvas, "<Enter>"))
    assert waits_after((beside, "<Enter>"), (button._canvas, "<Enter>"))
    tips.show("Of a window that closes", 20, 20)
    screen.update()
    assert tip_of(screen)
    button.destroy()
    screen.update()
    assert tip_of(screen) == ""
    assert not tips._waiting
    tips.show("At the edge " * 20, screen.winfo_screenwidth() - 5, screen.winfo_screenheight() - 5)
    screen.update()
    assert tips._window is not None
    assert tips._window.winfo_rootx() + tips._window.winfo_width() <= screen.winfo_screenwidth()
    assert tips._window.winfo_rooty() + tips._window.winfo_height() <= screen.winfo_screenheight()


def test_a_tip_does_not_stay_and_does_not_cover_its_widget(screen: tk.Tk, theme: Theme) -> None:
    tips = Tooltips(screen, theme)
    button = Button(screen, theme, "Press", lambda: None)
    button.pack()
    tips.attach(button, lambda: "What it does")
    screen.update()
    x, y = screen.winfo_pointerxy()
    screen.event_generate("<KeyPress>", keysym="F1")  # which shows another page below the pointer
    button._canvas.event_generate("<Enter>", rootx=x, rooty=y)
    assert not tips._waiting  # the pointer has not moved
    button._canvas.event_generate("<Enter>", rootx=x + 1, rooty=y)
    assert tips._waiting
    tips._leave()
    tips._due(lambda: "What it does", 20, 20, button, (10, 300))  # one of several things on a canvas
    screen.update()
    assert tips._window is not None
    assert tips._window.winfo_rooty() >= 300
    for sequence in ("<Button-4>", "<MouseWheel>", "<Unmap>"):
        tips.show("What it does", 20, 20)
        screen.update()
        assert tip_of(screen)
        screen.event_generate(sequence)
        screen.update()
        assert not tip_of(screen), sequence
    tips.show("What it does", 20, 20, edges=(10, 60))
    screen.update()
    assert tips._window is not None
    assert tips._window.winfo_rooty() >= 60
    tips.show("What it does", 20, screen.winfo_screenheight() - 10, edges=(screen.winfo_screenheight() - 50, 5000))
    screen.update()
    assert tips._window.winfo_rooty() + tips._window.winfo_height() <= screen.winfo_screenheight() - 50
    assert tips._hiding  # after a while it has been read
    tips._leave()
    assert not tips._hiding


def test_windows_leave_room_for_their_frames_on_a_low_screen(screen: tk.Tk, theme: Theme) -> None:
    """At 1366 x 768 the lower edge of the main window, with Start, was below the screen."""
    assert fitting_geometry("1100x700+20+200", (1366, 768)) == "1100x700+20+68"
    assert fitting_geometry("1366x741+0+27", (1366, 768)) == "1366x741+0+27"  # maximized
    assert fitting_geometry("1100x800+0+0", (1366, 768)) == ""
    place(screen, theme, "")
    screen.update()
    height = screen.winfo_screenheight()
    assert screen.winfo_rooty() + screen.winfo_height() <= height - FRAME_PX
    window = dialog.Window(screen, theme, "Tall")
    window.appear(300, 5000)
    window.update()
    assert window.winfo_rooty() + window.winfo_height() <= height - FRAME_PX
    window.close()
    question = Dialog(screen, theme, "Long", "A line.\n" * 200, (Answer("ok", "OK", is_default=True),))
    question.appear()
    question.update()
    bottom = question.buttons["ok"].winfo_rooty() + question.buttons["ok"].winfo_height()
    assert bottom <= question.winfo_rooty() + question.winfo_height()
    question.close()


def test_tab_goes_through_the_answers_of_a_question_as_they_look(screen: tk.Tk, theme: Theme) -> None:
    answers = [Answer(name, name.title(), is_default=name == "three") for name in ("one", "two", "three")]
    question = Dialog(screen, theme, "Question", "Which one?", answers)
    question.appear()
    question.update()
    buttons = [question.buttons[a.name] for a in answers]
    assert sorted(buttons, key=lambda b: b.winfo_rootx()) == buttons
    assert [b._canvas.tk_focusNext() for b in buttons[:2]] == [b._canvas for b in buttons[1:]]
    question.close()


def test_controls_work_by_keyboard(screen: tk.Tk, theme: Theme) -> None:
    pressed: list[str] = []
    flag, name = tk.BooleanVar(master=screen), tk.StringVar(master=screen, value="a")
    button = Button(screen, theme, "Press", lambda: pressed.append("button"))
    switch = Switch(screen, theme, flag)
    choice = Choice(screen, theme, name, {"a": "First", "b": "Second"})
    for widget in (button, switch, choice):
        widget.pack()
    screen.update()
    for widget in (button, switch):
        widget._canvas.focus_force()
        screen.update()
        widget._canvas.event_generate("<space>")
    button._canvas.focus_force()
    screen.update()
    switch._canvas.focus_force()
    screen.update()
    assert switch.cget("border_color") == theme.pair("text"), "not the colour of the track"
    choice._canvas.focus_force()
    screen.update()
    assert choice._canvas.itemcget("ring", "outline") == theme.colour("accent")
    button._canvas.focus_force()
    screen.update()
    assert not choice._canvas.find_withtag("ring")
    assert pressed == ["button"]
    assert flag.get() is True
    button.set_enabled(False)
    button._canvas.event_generate("<Return>")
    assert pressed == ["button"]
    assert choice._canvas.tk_focusNext() is switch._canvas, "a disabled button is no stop of Tab"
    button.set_enabled(True)
    assert choice._canvas.tk_focusNext() is button._canvas
    choice.menu.invoke(1)
    assert (name.get(), choice.get()) == ("b", "Second")
    name.set("a")
    assert choice.get() == "First"
    choice.set_choices({"a": "One", "c": "Three"})
    assert choice.get() == "One"


def test_the_focus_is_seen_on_primary_buttons_and_tables_and_keys_begin_at_the_first_row(
    screen: tk.Tk, theme: Theme
) -> None:
    button = Button(screen, theme, "Start", lambda: None, style="primary")
    table = Table(screen, theme, (Column("#0", "Name", 90),))
    for widget in (button, table):
        widget.pack()
    table.set_rows([("a", (), ""), ("b", (), "")])
    screen.update()
    button._canvas.focus_force()
    screen.update()
    assert button.cget("border_color") == theme.pair("text")
    table.tree.focus_force()
    screen.update()
    assert str(table.cget("highlightbackground")) == theme.colour("accent")
    assert button.cget("border_color") == theme.pair("accent")
    for expected in ([0], [1]):
        table.tree.event_generate("<Down>")
        screen.update()
        assert table.selected == expected
    button._canvas.focus_force()
    screen.update()
    assert str(table.cget("highlightbackground")) == theme.colour("card")


def test_a_cut_text_has_no_space_before_its_end() -> None:
    assert shorten("two  words\nmore", 20) == "two words more"
    assert shorten("two words", 5) == "two…"
    assert shorten("letters", 5) == "lett…"


def test_a_long_link_does_not_reach_into_the_next_column(screen: tk.Tk, theme: Theme) -> None:
    """The long name of a result was drawn over the link next to it, as was the folder below it."""
    links = [
        Link(f"{n}", "a_rather_long_name_of_a_model_" * 3, "models/" + "a-folder-without-spaces/" * 4) for n in "12"
    ]
    columns = LinkColumns(screen, theme, print, min_column_px=200)
    assert columns.show([("Results", links)], 460, 400)
    second = next(place for place in columns.placed if place.x)
    for item in columns.find_all():
        left, _, right, _ = columns.bbox(item)
        assert right <= (second.x if left + 1 < second.x else 460)  # a box has a margin of 1
    columns.destroy()


def test_a_long_path_shows_its_end(screen: tk.Tk, theme: Theme) -> None:
    path = "/a/long/way/" * 9 + "model.safetensors"
    narrow = tk.Frame(screen, width=300, height=200)
    narrow.pack_propagate(False)
    narrow.pack()
    text = FittedText(narrow, theme, path, keeps_end=True)
    value = tk.StringVar(screen, "")
    entry, other = Entry(narrow, theme, value, width=160, shows_end=True), Entry(narrow, theme, tk.StringVar(screen))
    for widget in (entry, other, text):
        widget.pack(fill="x")
    screen.update()
    shown = str(text.cget("text"))
    assert shown.startswith("…")
    assert path.endswith(shown[1:])
    assert text.hidden_text == path
    value.set(path)
    screen.update()
    assert entry.tk_entry.xview()[1] == 1.0
    entry.tk_entry.focus_force()
    screen.update()
    entry.tk_entry.xview_moveto(0)
    screen.update()
    assert entry.tk_entry.xview()[0] == 0.0  # while it is edited
    other.tk_entry.focus_force()
    screen.update()
    assert entry.tk_entry.xview()[1] == 1.0


def test_every_click_of_a_button_counts(screen: tk.Tk, theme: Theme) -> None:
    """Also the second of two quick ones, which customtkinter loses; not the release of a press elsewhere."""
    pressed: list[str] = []
    button = Button(screen, theme, "Add", lambda: pressed.append("add"))
    button.pack()
    screen.update()
    canvas = button._canvas
    canvas.event_generate("<Enter>")
    canvas.event_generate("<ButtonRelease-1>", state=0x100)
    assert pressed == []
    for _ in range(2):
        canvas.event_generate("<Button-1>")
        canvas.event_generate("<ButtonRelease-1>", state=0x100)
    assert pressed == ["add", "add"]
    canvas.event_generate("<Button-1>")
    canvas.event_generate("<Leave>")
    canvas.event_generate("<ButtonRelease-1>", state=0x100)
    assert pressed == ["add", "add"]


def test_destroyed_controls_unsubscribe_from_their_variables(screen: tk.Tk, theme: Theme) -> None:
    flag, name = tk.BooleanVar(master=screen), tk.StringVar(master=screen, value="a")
    widgets = [
        Switch(screen, theme, flag), Choice(screen, theme, name, {"a": "First"}),
        Entry(screen, theme, name, placeholder="empty"), TextArea(screen, theme, name),
    ]  # fmt: skip
    assert name.trace_info()
    for widget in widgets:
        widget.destroy()
    assert (flag.trace_info(), name.trace_info()) == ([], [])
    name.set("b")


def test_a_frame_changes_its_colour_after_its_controls_are_destroyed(screen: tk.Tk, theme: Theme) -> None:
    name, frame = tk.StringVar(master=screen, value="a"), tk.Frame(screen)
    controls = (
        Button(frame, theme, "Press", lambda: None), Switch(frame, theme, tk.BooleanVar(master=screen)),
        Choice(frame, theme, name, {"a": "First"}), Entry(frame, theme, name), Card(frame, theme, "Card"),
    )  # fmt: skip
    for control in controls:
        control.destroy()
    frame.configure(background="#123456")
    assert frame.cget("background") == "#123456"


def test_the_chart_draws_any_points(screen: tk.Tk, theme: Theme) -> None:
    chart = Plot(screen, theme, zooms=True)
    chart.show(run_figure(()))
    chart.pack(fill="both", expand=True)
    screen.update()
    chart.draw()
    assert chart.itemcget(chart.find_all()[0], "text") == NOTHING_YET
    for count in (1, 2, 2000):
        points = Series((n, 1 / n if n % 7 else None) for n in range(1, count + 1))
        chart.show(run_figure([Line("loss", "loss", "loss", points, "chart_raw", "thin")]))
        assert len(chart.find_all()) > 4
    chart.show(run_figure([Line("loss", "loss", "loss", Series([(5, None)]), "chart_raw", "thin")]))
    chart.event_generate("<Motion>", x=100, y=50)
    chart.event_generate("<Leave>")
    assert not chart.find_withtag("pointer")


def test_the_labels_of_a_low_chart_do_not_overlap(screen: tk.Tk, theme: Theme) -> None:
    """In the little room that a list of errors leaves, three numbers of the scale were drawn onto each other."""
    chart = Plot(screen, theme)
    chart.show(run_figure([Line("loss", "loss", "loss", Series([(1, 1.25), (2, 1.36)]), "chart_raw", "thin")]))
    chart.pack(fill="x")
    for height in (200, 80, 60, 40):
        chart.configure(height=height)
        screen.update()
        chart.draw()
        texts = [i for i in chart.find_all() if chart.type(i) == "text" and chart.itemcget(i, "anchor") == "e"]
        boxes = sorted((chart.bbox(i) for i in texts), key=lambda box: box[1])
        assert boxes
        assert all(above[3] <= below[1] + 4 for above, below in pairwise(boxes)), height


def test_the_first_column_of_a_table_is_cut_with_a_sign(screen: tk.Tk, theme: Theme) -> None:
    table = Table(screen, theme, (Column("#0", "Setting", 120, is_fitted=True), Column("now", "Now", 80)))
    table.pack()
    screen.update()
    table.set_rows([(" Text encoder 1 (CLIP-L): Gradient checkpointing", ("on",), "")])
    text = str(table.tree.item("0", "text"))
    assert text.startswith(" Text encoder")
    assert text.endswith("…")


@pytest.mark.parametrize("num_rows", [1, 3, 400])
@pytest.mark.parametrize("x", [0, 60, 10_000])
def test_a_table_stays_inside_the_chart(screen: tk.Tk, theme: Theme, num_rows: int, x: int) -> None:
    canvas = tk.Canvas(screen, width=400, height=200, highlightthickness=0)
    canvas.pack()
    screen.update()
    rows = [(f"a rather long name of number {n}", f"{n / 7:.4f}") for n in range(num_rows)]
    columns = [ReadoutColumn("concept", rows), ReadoutColumn("timestep", rows)]
    draw_readout(canvas, theme, (x, 20), "Step 5", columns, tag="box")
    left, top, right, bottom = canvas.bbox("box")
    assert -1 <= left < right
    assert -1 <= top < bottom <= 201
    texts = [canvas.itemcget(i, "text") for i in canvas.find_withtag("box") if canvas.type(i) == "text"]
    shown = [t for t in texts if t.startswith("a rather")]
    more = [int(t.split()[1]) for t in texts if t.startswith("and ")]
    assert len(shown) + sum(more) == 2 * num_rows
    assert all(len(t) <= 22 for t in shown)


def test_the_log_grows_and_follows(screen: tk.Tk, theme: Theme) -> None:
    log = LogView(screen, theme)
    log.pack(fill="both", expand=True)
    screen.update()
    lines = tuple(LogLine(float(n), f"line {n}", "warning" if n % 2 else "plain") for n in range(200))
    log.show(lines[:100])
    log.show(lines)
    screen.update()
    assert log.text.get("1.0", "end").count("\n") == 200
    assert log.text.yview()[1] > 0.99
    log.text.yview_moveto(0)
    log.show((*lines, LogLine(0.0, "one more")))
    screen.update()
    assert log.text.yview()[0] == 0  # the view stays while the user reads further up
    log.pack_forget()
    log.place(x=0, y=0, width=150, height=203)  # wrapped, and no multiple of a line
    screen.update()
    log.text.see("end")
    for _ in range(3):
        screen.update()
        tops = [info[1] for y in range(0, log.text.winfo_height(), 5) if (info := log.text.dlineinfo(f"@0,{y}"))]
        assert min(tops) == 0
        assert max(tops) + log._line_px == log.text.winfo_height()
        log.text.event_generate("<Button-4>")
    log.show(lines[:2])
    assert log.text.get("1.0", "end").count("\n") == 2
    assert lines_after(lines[:3], lines[1:5]) == lines[3:5]
    assert lines_after((), lines) == lines
    assert lines_after(lines[:2], lines[100:]) == lines[100:]


def test_the_log_drops_removed_lines(screen: tk.Tk, theme: Theme) -> None:
    log = LogView(screen, theme)
    log.pack(fill="both", expand=True)
    lines = tuple(LogLine(float(n), f"line {n}" + "\nin two rows" * (n % 3 == 0)) for n in range(200))
    for first in range(0, 190, 10):
        log.show(lines[first : first + 20])
    rows = [row for row in log.text.get("1.0", "end-1c").split("\n") if "line" in row]
    assert [row.split("\t")[1] for row in rows] == [f"line {n}" for n in range(180, 200)]
    assert log.text.get("1.0", "end").count("\n") == 20 + 7  # of which seven have two rows


def test_no_width_makes_the_log_and_its_bar_loop(screen: tk.Tk, theme: Theme) -> None:
    log = LogView(screen, theme)
    log.place(x=0, y=0, width=200, height=100)
    for width in range(120, 400, 7):
        log.place_configure(width=width)
        log.show([LogLine(0.0, "a line that is long enough to wrap " * n) for n in range(1, 4)])
        screen.update()
        inner = log.text.winfo_width()
        log.show([LogLine(0.0, "short")])
        screen.update()
        assert log.text.winfo_width() == inner


def test_the_bar_is_seen_when_needed_and_can_be_dragged(screen: tk.Tk, theme: Theme) -> None:
    moved: list[tuple[Any, ...]] = []
    bar = AutoBar(screen, theme, lambda *arguments: moved.append(arguments), on="card")
    bar.place(x=0, y=0, width=12, height=200)
    screen.update()
    bar.set(0, 1)
    assert not bar.is_needed
    assert bar.itemcget(bar._thumb, "state") == "hidden"
    bar.set("0.0", "0.5")
    assert bar.itemcget(bar._thumb, "state") == "normal"
    bar.event_generate("<Button-1>", x=6, y=50)
    bar.event_generate("<B1-Motion>", x=6, y=100)
    assert moved[-1] == ("moveto", 0.25)
    bar.event_generate("<Button-1>", x=6, y=199)
    assert moved[-1] == ("moveto", 0.5)
    bar.set(0, 0.001)
    top, bottom = bar._ends()
    assert bottom - top == 24


@pytest.mark.parametrize("base", [Grid, DrawnCanvas])
def test_a_grid_and_a_canvas_must_state_how_they_are_drawn(screen: tk.Tk, base: type) -> None:
    with pytest.raises(TypeError, match="abstract"):
        type("Undrawn", (base,), {})(screen)


def num_images(grid: ImageGrid) -> int:
    """Return how many images are drawn; the others are plates until they are loaded."""
    return sum(grid.canvas.type(item) == "image" for item in grid.canvas.find_all())


def test_the_grid_loads_only_visible_images(window: Window, tmp_path: Path) -> None:
    for n in range(60):
        Image.new("RGB", (16, 16), (4 * n, 0, 0)).save(tmp_path / f"{n:02}.png")
    top = tk.Toplevel(window.app.root)
    top.geometry("400x300+0+0")
    opened: list[int] = []
    grid = ImageGrid(top, window.app.theme, window.app.context.pump, on_open=opened.append)
    grid.pack(fill="both", expand=True)
    window.settle()
    grid.show([Tile(tmp_path / f"{n:02}.png", f"number {n} with a caption that is far too long") for n in range(60)])
    window.wait_until(lambda: num_images(grid) == len(grid.visible(grid.layout())), "images")
    window.settle()
    assert 0 < len(grid.photos.loaded) < 20
    grid.canvas.event_generate("<Button-1>", x=10, y=10)
    assert opened == [0]
    for _ in range(5):
        grid.canvas.event_generate("<Button-5>")
    grid._scroll_by_bar("moveto", "0.5")
    window.wait_until(lambda: num_images(grid) == len(grid.visible(grid.layout())), "images")
    assert grid.top > 0
    grid.canvas.event_generate("<Button-1>", x=10, y=10)
    assert opened[1] > 10
    grid.show(())
    grid.destroy()


def test_samples_from_before_the_page_is_drawn_are_shown_from_their_newest(window: Window, tmp_path: Path) -> None:
    """A window that follows a run has its samples before it has drawn the page: the newest ones stay in view."""
    top = tk.Toplevel(window.app.root)
    top.geometry("400x300+0+0")
    grid = SampleGrid(
        top, window.app.theme, window.app.context.pump, empty_text="", on_open=lambda _p: None, on_star=lambda _p: None
    )
    for num_steps in (20, 21):
        samples = [SampleReady(n, 0, "a disc", str(tmp_path / f"{n}.png")) for n in range(num_steps)]
        grid.show(SampleTable(tuple(samples)), ())
        grid.pack(fill="both", expand=True)
        window.settle()
        grid.draw()
        right = grid.image_corner((0, num_steps - 1))[0] + grid.layout().cell_width
        assert right <= grid.canvas.winfo_width(), num_steps
    grid.destroy()


def test_the_grid_asks_only_for_visible_captions(window: Window, tmp_path: Path) -> None:
    top = tk.Toplevel(window.app.root)
    top.geometry("400x300+0+0")
    asked: list[int] = []

    def caption_of(number: int) -> str:
        asked.append(number)
        return f"number {number}"

    grid = ImageGrid(top, window.app.theme, window.app.context.pump)
    grid.pack(fill="both", expand=True)
    window.settle()
    grid.show([Tile(tmp_path / f"{n:02}.png", partial(caption_of, n)) for n in range(60)])
    grid.draw()
    assert asked == list(range(len(asked)))
    assert 0 < len(asked) < 20
    assert grid.tiles[0].caption == "number 0"
    assert asked.count(0) == 1
    top.destroy()


def test_images_are_fitted(tmp_path: Path) -> None:
    Image.new("RGB", (200, 100), "red").save(tmp_path / "wide.png")
    Image.new("RGBA", (10, 20)).save(tmp_path / "small.png")
    assert load_fitted(tmp_path / "wide.png", 100, 100).size == (100, 50)
    assert load_fitted(tmp_path / "small.png", 100, 100).size == (10, 20)
    assert load_fitted(tmp_path / "small.png", 100, 110, enlarge="smooth").size == (55, 110)
    assert load_fitted(tmp_path / "small.png", 100, 110, enlarge="pixels").size == (50, 100)
    assert load_covering(tmp_path / "wide.png", 48, 48).size == (48, 48)
    with pytest.raises(OSError, match=r"cannot identify|No such"):
        load_covering(tmp_path / "none.png", 48, 48)


def test_tabs_continue_on_the_next_line_in_a_narrow_card(screen: tk.Tk, theme: Theme) -> None:
    card = TabbedCard(screen, theme)
    for title in ("Inspect", "Merge into a model", "Strengths per block"):
        card.add(title, is_offered=True)
    for width, num_lines in ((800, 1), (260, 2), (800, 1)):
        tk.Place.place_configure(card, x=0, y=0, width=width)
        screen.update()
        assert len({tab.winfo_y() for tab in card.tabs.values()}) == num_lines
        assert all(tab.winfo_x() + tab.winfo_width() <= card.bar.winfo_width() for tab in card.tabs.values())
    card.offer("Merge into a model", is_offered=False)
    screen.update()
    assert not card.tabs["Merge into a model"].winfo_ismapped()
    first, last = card.tabs["Inspect"], card.tabs["Strengths per block"]
    assert last.winfo_x() == first.winfo_x() + first.winfo_width() + theme.px(16)
    card.offer("Merge into a model")
    screen.update()
    assert first.winfo_x() < card.tabs["Merge into a model"].winfo_x() < last.winfo_x(), "at its own place, not last"


@pytest.mark.parametrize("is_on", [False, True])
def test_switches_of_cards_look_like_those_of_forms(screen: tk.Tk, is_on: bool) -> None:
    """Their knob was grey in the light mode."""
    theme = Theme("light")
    shapes = Shapes(screen, theme)
    photo: Any = shapes.switch(40, 20, is_on=is_on, on="window")
    colours = {f"#{r:02x}{g:02x}{b:02x}" for _, (r, g, b) in ImageTk.getimage(photo).convert("RGB").getcolors()}
    assert {theme.colour("switch_knob"), theme.colour("accent" if is_on else "switch")} <= colours
    shapes.forget()


def test_the_heading_of_a_card_is_seen_if_its_size_comes_after_the_width(screen: tk.Tk, theme: Theme) -> None:
    """It was missing on the Run page of a window that opened with a run in progress."""
    screen.geometry("500x300")
    card = TabbedCard(screen, theme)
    card.add("Samples", is_offered=True)
    card.bar.bind("<Configure>", lambda _e: None)  # its width came first
    card.pack(fill="both", expand=True)
    screen.update()
    assert card.bar.winfo_height() >= card.tabs["Samples"].winfo_reqheight() > 10


def test_a_disabled_button_is_never_orange(screen: tk.Tk, theme: Theme) -> None:
    button = Button(screen, theme, "Apply", lambda: None, style="primary")
    button.pack()
    screen.update()
    for is_enabled, colour in ((True, "accent"), (False, "field"), (True, "accent")):
        button.set_enabled(is_enabled)
        assert button.cget("fg_color") == theme.pair(colour)


def test_a_widget_that_goes_before_it_is_scrolled_into_view_moves_nothing(screen: tk.Tk, theme: Theme) -> None:
    """A form that is rebuilt takes the widget with it that has just got the focus."""
    frame = ScrollFrame(screen, theme)
    frame.pack(fill="both", expand=True)
    label = Text(frame.body, theme, "here")
    label.pack()
    screen.after_idle(label.destroy)
    frame.see(label)
    assert frame.canvas.yview()[0] == 0.0


def test_a_choice_that_is_drawn_does_not_let_tk_draw_all_else(screen: tk.Tk, theme: Theme) -> None:
    """Each choice of a page that was being built laid out and drew the whole window."""
    choice = Choice(screen, theme, tk.StringVar(master=screen), {"a": "A"})
    choice.pack()
    screen.update()
    drawn: list[int] = []
    screen.after_idle(drawn.append, 1)
    choice._draw()
    assert not drawn
    screen.update()
    assert drawn


def test_a_button_under_the_pointer_has_one_colour_at_any_size(screen: tk.Tk, theme: Theme) -> None:
    """customtkinter draws a new size in the usual colour, but not the label, which was a gray box then."""
    button = Button(screen, theme, "Open", lambda: None)
    button.place(x=0, y=0)
    screen.update()
    button._on_enter()
    for height in (36, 60):
        button._set_dimensions(width=200, height=height)
        button._draw(no_color_updates=True)
        colours = {button._text_label.cget("bg"), button._canvas.itemcget("inner_parts", "fill")}
        assert colours == {theme.colour("field_hover")}, height
    button._on_leave()
    button._draw(no_color_updates=True)
    assert button._text_label.cget("bg") == theme.colour("field")


def test_a_page_at_its_end_stays_when_a_bar_below_it_goes(screen: tk.Tk, theme: Theme) -> None:
    frame, bar = ScrollFrame(screen, theme), Panel(screen, theme, height=60)
    bar.pack(side="bottom", fill="x")
    frame.pack(fill="both", expand=True)
    content = Panel(frame.body, theme, height=2000, width=10)
    content.pack()
    screen.update()
    frame.scroll_px(5000)
    screen.update()
    end = 2000 - frame.canvas.winfo_height()
    place = content.winfo_rooty()
    bar.pack_forget()
    screen.update()
    assert content.winfo_rooty() == place, "what is under the pointer stays"
    frame.scroll_px(-20)
    screen.update()
    frame.scroll_px(5000)
    screen.update()
    assert frame.canvas.canvasy(0) == end - 20, "what was scrolled out of it is no room any more"
    frame.scroll_px(-100)
    screen.update()
    frame.scroll_px(5000)
    screen.update()
    assert content.winfo_rooty() + 2000 == frame.canvas.winfo_rooty() + frame.canvas.winfo_height()
    screen.geometry("900x700+0+0")
    screen.update()
    assert content.winfo_rooty() + 2000 == frame.canvas.winfo_rooty() + frame.canvas.winfo_height(), "a larger window"
    content.configure(height=1000)
    screen.update()
    assert content.winfo_rooty() + 1000 == frame.canvas.winfo_rooty() + frame.canvas.winfo_height()


@pytest.mark.parametrize(
    ("sequence", "events"),
    [
        ("<Return>", ["<Return>"]),
        ("<ButtonRelease-1>", ["<Button-1>", "<ButtonRelease-1>"]),
        ("<Double-Button-1>", ["<Button-1>", "<ButtonRelease-1>", "<Button-1>"]),
    ],
)
def test_a_table_may_close_its_window(screen: tk.Tk, theme: Theme, sequence: str, events: list[str]) -> None:
    """Tk then ran its own binding of the list, and reported that there is none."""
    table = Table(screen, theme, (Column("#0", "Name", 100),))
    table.pack()
    table.set_rows([("one", (), "")])
    table.on_events({sequence: table.destroy})
    table.tree.focus_force()
    screen.update()
    for event in events:
        table.tree.event_generate(event, x=5, y=30)
    screen.update()
    assert not table.winfo_exists()


def test_a_call_for_later_is_dropped_with_its_widget(screen: tk.Tk, theme: Theme) -> None:
    """Tk would report the command of a widget's own timer, which goes with the widget."""
    called: list[str] = []
    gone, kept = Text(screen, theme), Text(screen, theme)
    for delay in (1, "idle"):
        call_later(gone, delay, lambda: called.append("gone"))  # type: ignore[arg-type]
        call_later(kept, delay, lambda: called.append("kept"))  # type: ignore[arg-type]
    gone.destroy()
    while called != ["kept", "kept"]:
        screen.tk.dooneevent(0)
