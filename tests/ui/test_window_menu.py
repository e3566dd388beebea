"""What concerns the whole window: the scale, the side bar, the card of a message."""

from __future__ import annotations

import gc
import tkinter as tk
from collections.abc import Callable
from typing import Any

from modules.config.schema import Config
from modules.system.problem import Problem
from tests.ui.conftest import Window
from tests.ui.driving import fill, flip, inside, pick, texts_in
from tests.ui.fake_engine import started, step
from tests.ui.test_open_and_close import left
from ui.app.catalogue import PAGES
from ui.forms.model import Source
from ui.loop.jobs import JobRunner, JobState
from ui.widgets.controls import Switch
from ui.widgets.entry import Entry
from ui.widgets.notices import Notice, Reply
from ui.widgets.panel import Text, focused_widget
from ui.widgets.plot_axes import Zoom
from ui.widgets.variables import FlagVar
from ui.widgets.window import cancel_pending, set_scale


def test_a_load_says_what_it_replaced_and_undo_brings_it_back(window: Window) -> None:
    app, bar = window.app, window.app.shell.notice_bar
    app.form.edit("training.epochs", 7)
    window.settle()
    place = app.shell.host.winfo_rooty()
    app.context.actions.run("demo")
    window.settle()
    assert bar.winfo_ismapped()
    assert app.shell.host.winfo_rooty() == place, "nothing slides away under the pointer"
    [line] = bar.lines
    assert line.text.cget("text") == "Loaded #demo. It replaced Untitled with 1 unsaved change."
    line.buttons["Undo"].invoke()
    window.settle()
    assert app.form.config.training.epochs == 7
    assert app.form.is_changed
    assert not bar.winfo_ismapped()
    assert app.shell.host.winfo_rooty() == place


def test_a_notice_about_a_load_ends_with_the_start(ready: Window) -> None:
    app = ready.app
    app.form.edit("training.epochs", 7)
    config = app.form.config
    app.context.documents.open_demo()
    app.context.notices.show(Notice("other", "Something else."))
    app.form.replace(config)  # an edit: an undo would take it back instead
    assert [n.key for n in app.context.notices.items] == ["other"]
    app.form.edit("training.epochs", 8)
    app.context.documents.open_demo()
    app.context.notices.withdraw_before_start()
    assert [n.key for n in app.context.notices.items] == ["other"]


def test_a_low_window_keeps_most_of_its_height_for_the_page(open_window: Callable[..., Window]) -> None:
    window = open_window(first_steps="demo")
    app, shell = window.app, window.app.shell
    long = "The run of 3 March, 12:04 ended unexpectedly at step 120 of 400. Its newest backup is step 100 (12:08)."
    for number in range(3):
        app.context.notices.show(Notice(f"{number}", long * 2, (Reply("Resume", lambda: None),)))
    window.settle()
    high = shell.first_steps.winfo_height() + shell.notice_bar.winfo_height()
    assert len(shell.notice_bar.lines) == 3
    app.root.geometry("1024x600")
    window.wait_until(lambda: shell.winfo_height() == 600, "the low window")
    window.settle()
    low = shell.first_steps.winfo_height() + shell.notice_bar.winfo_height()
    assert low < 80 < high
    [line] = shell.notice_bar.lines
    assert str(line.text.cget("text")).endswith("…")
    assert line.text.hidden_text == long * 2
    line.buttons["2 more"].invoke()
    window.settle()
    assert len(shell.notice_bar.lines) == 3
    problems = [Problem("training.epochs", f"Problem {n}.", "warning") for n in range(30)]
    for notice in app.context.notices.items:
        app.context.notices.remove(notice.key)
    app.context.findings.show("Many", problems, app.form.config)
    window.settle()
    assert shell.host.winfo_height() > 280  # with the card and a long report


def test_another_scale_applies_at_once_and_keeps_edits_the_page_and_a_run(ready: Window) -> None:
    app = ready.app
    app.form.edit("training.epochs", 7)
    run_page: Any = ready.open_page("run")
    run_page.curves.chart.set_zoom(Zoom((2.0, 9.0)))
    run_page.curves.is_log.set(True)
    run_page.curves._set_log()
    run_page.log.words.set("warning")
    tools: Any = ready.open_page("tools")
    tools.choose("Resize")
    tools.form("lora-resize").form.set("source", "/some/lora.safetensors")
    tools.form("lora-combine").form.set("files", [{"path": "/one.safetensors"}])
    for key in ("sample", "choose", "queue"):  # they bind keys, or ask their models again and again
        ready.open_page(key)
    app.context.notices.show(Notice("load", "Loaded it. It replaced another.", until_start=True))
    app.starter.start()
    ready.wait_until(lambda: ready.engine.run is not None, "the run")
    assert app.context.notices.items == ()
    assert ready.engine.run is not None
    ready.engine.run.emit(started(), step(1))
    ready.open_page("output")

    found = []
    try:
        for percent in (150, 100, 150, 100):  # from the second round on nothing is new
            menu = app.shell.side_bar.make_window_menu()
            menu.invoke(f"*Scale {percent} %")
            ready.settle()
            assert app.theme.scale == percent / 100
            assert app.context.navigation.page == "output"
            assert list(app.shell.pages) == ["output"]
            assert app.form.config.training.epochs == 7
            if percent == 100:
                gc.collect()
                found.append(left(ready))
            ready.engine.run.emit(step(2 + len(found)))
            ready.wait_until(lambda: app.context.session.state.step == step(2 + len(found)), "the next step")
    finally:
        set_scale(app.root, app.theme, 100)
    assert found[0] == found[1]  # nothing of the old views stays
    run_page, tools = ready.open_page("run"), ready.open_page("tools")
    assert (run_page.curves.chart.zoom, run_page.curves.chart.is_log) == (Zoom((2.0, 9.0)), True)
    assert run_page.log.entry.tk_entry.get() == "warning"
    assert tools.tabs.shown == "Resize"
    resizing = tools.form("lora-resize").form.settings
    assert (resizing.source, resizing.out) == ("/some/lora.safetensors", "/some/lora-resized.safetensors")
    assert [file.path for file in tools.form("lora-combine").form.settings.files] == ["/one.safetensors"]
    app.form.undo()
    ready.settle()
    assert app.form.config.training.epochs != 7


def test_a_scale_waits_for_a_job_of_a_page(window: Window) -> None:
    app = window.app
    runner = JobRunner()
    runner.state = JobState("running", "Convert")
    app.context.pump.add_source(runner.drain)
    app.preferences.change(scale_percent=150)
    window.settle()
    [line] = app.shell.notice_bar.lines
    assert "has not changed yet" in line.notice.text
    assert app.theme.scale != 1.5
    app.preferences.change(scale_percent=0)
    line.buttons["Change it now"].invoke()  # it is the old one again
    window.settle()
    assert not app.shell.notice_bar.lines
    app.context.pump.remove_source(runner.drain)


def test_nothing_that_was_scheduled_runs_in_the_next_window(root: tk.Tk) -> None:
    root.after(10**6, root.update)
    root.after_idle(root.update)
    cancel_pending(root)
    assert root.tk.call("after", "info") in ("", ())


def test_an_entry_has_its_mark_right_of_the_shortcut_and_opens_wherever_it_is_clicked(window: Window) -> None:
    entry = window.app.shell.side_bar.entries["data"]
    assert len(entry.winfo_children()) == 2, "the mark and the shortcut are made when they are shown"
    entry.event_generate("<Enter>")
    entry.set_mark("!", "error")
    window.settle()
    places = {str(w.cget("text")): w.winfo_x() for w in entry.winfo_children() if isinstance(w, Text)}
    assert places["Data"] < places["Ctrl+3"] < places["!"]
    next(w for w in entry.winfo_children() if isinstance(w, Text) and w.cget("text") == "!").event_generate(
        "<Button-1>"
    )
    assert window.app.context.navigation.page == "data"


def test_entries_show_their_shortcut_instead_of_a_tip_and_top_bar_links_focus(window: Window) -> None:
    entry = window.app.shell.side_bar.entries["data"]
    entry.event_generate("<Enter>")
    assert texts_in(entry) == ["Data", "Ctrl+3"]
    entry.event_generate("<Leave>")
    assert texts_in(entry) == ["Data"]
    assert {page.section_title for page in PAGES} == {"", "Settings", "Work"}
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
    switch = Switch(window.app.shell.host, window.app.theme, FlagVar(master=window.app.shell))
    switch.grid(row=1, column=0)
    window.settle()
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
    assert "!" in texts_in(window.app.shell.side_bar.entries["model"])
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
