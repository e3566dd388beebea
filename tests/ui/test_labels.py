"""No text of the window is cut off, and nothing lies outside of it, at any scale."""

from __future__ import annotations

import tkinter as tk
import tkinter.font as tkfont
from collections.abc import Callable, Iterator

import customtkinter as ctk
import pytest

from tests.ui.conftest import Window
from tests.ui.driving import main_buttons, walk
from ui.app.catalogue import PAGES
from ui.widgets.controls import Button, Choice
from ui.widgets.entry import Entry
from ui.widgets.panel import Text, WrappedText
from ui.widgets.theme import Theme

SIZES = ((100, "1024x600"), (150, "1536x900"), (200, "1920x1080"))
_ROUNDING_PX = 2


@pytest.fixture
def scaled(open_window: Callable[..., Window], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Window]]:
    """Open a window at a scale; the next tests have 100 % again."""

    def opens(percent: int) -> Window:
        monkeypatch.setattr("ui.app.window.Theme", lambda mode: Theme(mode, scale=percent / 100))
        ctk.set_widget_scaling(percent / 100)
        return open_window(first_steps="demo")

    yield opens
    ctk.set_widget_scaling(1.0)


def text_and_room(widget: tk.Misc) -> tuple[str, int, int] | None:
    """Return the text of a widget, its width in pixels and the room for it; None for a widget without a text."""
    match widget:
        case WrappedText():
            return None  # as wide as its place, over as many lines as needed
        case Text():
            return str(widget.cget("text")), widget.winfo_reqwidth(), widget.winfo_width()
        case Button() if widget._text_label is not None:
            return str(widget.cget("text")), widget._text_label.winfo_reqwidth(), widget.winfo_width()
        case Choice():
            label = widget._text_label
            font = tkfont.Font(widget, font=label.cget("font"))
            return widget.get(), font.measure(widget.get()), label.winfo_width()
        case Entry() if widget._hint is not None and widget._hint.winfo_ismapped():
            return str(widget._hint.cget("text")), widget._hint.winfo_reqwidth(), widget.winfo_width()
    return None


def cut_off(inside: tk.Misc, exceptions: tuple[tk.Misc, ...] = ()) -> list[str]:
    """Return the visible texts that are wider than their room."""
    found = []
    for widget in walk(inside):
        if not widget.winfo_ismapped() or widget in exceptions:
            continue
        measured = text_and_room(widget)
        if measured is not None and measured[1] > measured[2] + _ROUNDING_PX:
            found.append(f"{measured[0]!r}: {measured[1]} px in {measured[2]}")
    return found


def outside(inside: tk.Misc, of: tk.Misc) -> list[str]:
    """Return the visible controls that reach beyond the right edge of the window."""
    edge = of.winfo_rootx() + of.winfo_width()
    return [
        str(w)
        for w in walk(inside)
        if isinstance(w, Button | Choice | Entry | Text) and w.winfo_ismapped()
        if w.winfo_rootx() + w.winfo_width() > edge + _ROUNDING_PX
    ]


@pytest.mark.parametrize(
    ("percent", "size"),
    [pytest.param(*row, marks=() if row[0] == 100 else pytest.mark.full, id=f"{row[0]}") for row in SIZES],
)
def test_no_text_is_cut_off_on_any_page(scaled: Callable[[int], Window], percent: int, size: str) -> None:
    window = scaled(percent)
    window.app.root.geometry(f"{size}+0+0")
    window.app.preferences.change(show_advanced=True)
    window.settle()
    shell = window.app.shell
    bars = (shell.side_bar, shell.top_bar, shell.first_steps, shell.bottom_bar)
    assert cut_off(shell.top_bar) + cut_off(shell.side_bar) + cut_off(shell.first_steps) == []
    assert [path for bar in bars for path in outside(bar, window.app.root)] == []
    assert cut_off(shell.bottom_bar, (shell.bottom_bar.detail,)) == []
    for page in PAGES:
        frame = window.open_page(page.key).frame  # type: ignore[attr-defined]
        window.settle()
        assert cut_off(frame) == [], page.key
        assert main_buttons(window.app.root) == ["Load it"], "of the card of first steps"
        assert outside(frame, window.app.root) == [], page.key
    window.app.preferences.change(is_simple=False)  # the simple page is that view
    window.settle()
    hidden = [key for key, entry in shell.side_bar.entries.items() if not entry.winfo_ismapped()]
    assert hidden == ["simple"]  # the page of the simple view
    entries = [entry for key, entry in shell.side_bar.entries.items() if key not in hidden]
    if percent == 100:  # all entries are visible without scrolling
        lowest = max(e.winfo_rooty() + e.winfo_height() for e in entries)
        canvas = shell.side_bar.scroll.canvas
        assert lowest <= canvas.winfo_rooty() + canvas.winfo_height()


@pytest.mark.parametrize("method", ["grpo", "alignprop", "dpo"])
def test_no_hint_is_cut_off_in_two_columns(window: Window, method: str) -> None:
    window.app.root.geometry("1180x700")
    window.app.preferences.change(show_advanced=True)
    window.app.form.choose_variant("training.method", method)
    window.settle()
    for key in ("rewards", "training"):
        page = window.open_page(key)
        assert not cut_off(page.frame)
