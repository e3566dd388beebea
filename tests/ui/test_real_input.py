"""The window under real pointer and key events, sent to the X server."""

from __future__ import annotations

import tkinter as tk
from typing import Any

from modules.config.schema import Config
from tests.ui.conftest import Window
from tests.ui.driving import inside
from tests.ui.real_input import click, click_row, keys
from ui.forms.chooser import Chooser
from ui.widgets.controls import Choice
from ui.widgets.entry import Entry
from ui.widgets.panel import focused_widget


def test_a_list_is_opened_by_the_pointer_and_chosen_from_by_keys(window: Window) -> None:
    page: Any = window.open_page("training")
    row = next(r for r in page.form_view.rows() if r.record.path == "training.precision")
    page.scroll.canvas.yview_moveto(0.25)  # so that the list has room below
    choice = inside(row.control.frame, Choice)
    click(window, choice)
    window.wait_until(choice.menu.winfo_viewable, "the list")
    names = list(choice.choices)
    keys(window, *["Down"] * (names.index("float16") + 1), "Return")
    window.wait_until(lambda: window.app.form.config.training.precision == "float16", "the choice")


def test_an_optimizer_is_chosen_by_a_click_in_its_window(window: Window) -> None:
    page: Any = window.open_page("training")
    row = next(r for r in page.form_view.rows() if r.record.path == "training.optimizer")
    page.scroll.see(row.control.frame)
    click(window, inside(row.control.frame, Choice))
    root = window.app.root
    window.wait_until(lambda: any(isinstance(w, Chooser) for w in root.winfo_children()), "the window of the list")
    chooser = next(w for w in root.winfo_children() if isinstance(w, Chooser))
    tree = chooser.table.tree
    line = str(chooser.names.index("adafactor"))
    window.wait_until(lambda: tree.winfo_viewable() and tree.bbox(line), "the list")
    click_row(window, tree, line)
    window.wait_until(lambda: window.app.form.config.training.optimizer.name == "adafactor", "the choice")


def test_typing_replaces_what_is_selected(window: Window) -> None:
    page: Any = window.open_page("training")
    row = next(r for r in page.form_view.rows() if r.record.path == "training.learning_rate")
    entry = inside(row.control.frame, Entry).tk_entry
    click(window, entry)
    window.wait_until(lambda: focused_widget(window.app.root) is entry, "the focus")
    keys(window, "ctrl+a", "3", "e", "minus", "4")
    window.wait_until(lambda: window.app.form.config.training.learning_rate == 3e-4, "the number")
    assert entry.get() == "3e-4"
    click(window, page.frame)
    window.wait_until(lambda: entry.get() == "0.0003", "the usual form")
    keys(window, "ctrl+z")
    window.wait_until(lambda: window.app.form.config.training.learning_rate == 1e-4, "the undo")


def test_the_wheel_scrolls_the_page_under_the_pointer(window: Window) -> None:
    window.app.preferences.change(show_advanced=True)
    page: Any = window.open_page("training")
    row = next(r for r in page.form_view.rows() if r.record.path == "adapter.rank")
    click(window, row.control.frame, button=5)
    window.wait_until(lambda: page.scroll.canvas.canvasy(0) > 0, "the page to move")
    assert window.app.form.config.adapter == Config().adapter


def test_an_embedding_is_added_edited_deleted_and_undone(window: Window) -> None:
    """On its page, by pointer and keys; hidden for the VAE, which has no words."""
    form = window.app.form
    page: Any = window.open_page("embeddings")
    click(window, page.list.buttons["add"])
    window.wait_until(lambda: page.editor is not None and page.editor.winfo_viewable(), "the editor")
    assert [w.placeholder for w in form.config.embeddings.words] == ["<embedding>"]
    fields = {row.record.name: row for row in page.editor.form_view.rows()}
    for name, *typed in (("placeholder", "z", "o", "g"), ("token_count", "4")):
        click(window, inside(fields[name].control.frame, Entry).tk_entry)
        keys(window, "ctrl+a", *typed, "Tab")
    window.wait_until(lambda: form.config.embeddings.words[0].token_count == 4, "the token count")
    assert form.config.embeddings.words[0].placeholder == "zog"
    keys(window, "Escape")
    window.wait_until(lambda: not page.editor.winfo_exists(), "the editor to close")
    tree = page.list.table.tree
    assert str(tree.item("0", "text")).strip() == "zog"
    click_row(window, tree, "0")
    window.wait_until(lambda: tree.selection() == ("0",), "the selection")
    keys(window, "Delete")
    window.wait_until(lambda: form.config.embeddings.words == (), "the deletion")
    keys(window, "ctrl+z")
    window.wait_until(lambda: [w.placeholder for w in form.config.embeddings.words] == ["zog"], "the undo")
    form.edit("training.trains", "vae")
    window.wait_until(lambda: not page.list.card.winfo_ismapped(), "the list to disappear")


def test_a_page_opened_by_keys_gets_the_focus_and_the_hidden_one_no_keys(window: Window) -> None:
    page: Any = window.open_page("training")
    row = next(r for r in page.form_view.rows() if r.record.path == "training.learning_rate")
    click(window, inside(row.control.frame, Entry).tk_entry)
    rate = window.app.form.config.training.learning_rate
    keys(window, "ctrl+2")
    window.wait_until(lambda: window.app.context.navigation.page == "model", "the page")
    keys(window, "ctrl+a", "3")
    assert window.app.form.config.training.learning_rate == rate
    assert focused_page(window) == "model"
    keys(window, "Tab")
    window.wait_until(lambda: focused_page(window) == "model", "the focus in the page")
    assert focused_widget(window.app.root) is not window.app.shell.pages["model"].frame
    window.app.shell.side_bar.entries["model"].focus_set()
    keys(window, "Return")
    window.wait_until(lambda: focused_page(window) == "model", "the focus in the page that is open already")


def test_tab_begins_at_the_page_after_the_focused_button_is_gone(window: Window) -> None:
    page: Any = window.open_page("home")
    button = tk.Button(page.frame, text="Begin")
    button.focus_set()
    window.settle()
    button.destroy()
    window.settle()
    keys(window, "Tab")
    window.wait_until(lambda: focused_page(window) == "home", "the focus in the page")


def focused_page(window: Window) -> str:
    """Return the page in which the focus is, or an empty text."""
    focused = f"{focused_widget(window.app.root)}."
    pages = window.app.shell.pages
    return next((key for key, page in pages.items() if focused.startswith(f"{page.frame}.")), "")
