"""Every page, window and dialog at the sizes that people have: nothing is cut off, covered, off the screen or raw."""

from __future__ import annotations

import platform
import re
import tkinter as tk
import tkinter.font as tkfont
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from tkinter import ttk

import customtkinter as ctk
import pytest

from tests.ui.conftest import Window
from tests.ui.driving import walk
from tests.ui.more_openers import more_openers, window_classes
from tests.ui.test_labels import cut_off, text_and_room
from tests.ui.test_open_and_close import close_windows, fill, openers
from trainer.remote.providers import Offer
from ui.app.catalogue import PAGES
from ui.widgets import dialog as dialogs
from ui.widgets.controls import Button, Choice
from ui.widgets.entry import Entry
from ui.widgets.panel import Text
from ui.widgets.scroll import ScrollFrame
from ui.widgets.theme import Mode, Theme

SIZES = (("1366x768", 100), ("1280x800", 150), ("1920x1080", 100))
MODES: tuple[Mode, ...] = ("light", "dark")
_ROUNDING_PX = 2
OFFERS = (
    Offer("NVIDIA GeForce RTX 4090", "RTX 4090", 24, 0.69, "high"),
    Offer("NVIDIA H200", "H200", 141, 3.99, "low"),
)


def box_of(widget: tk.Misc) -> tuple[int, int, int, int]:
    left, top = widget.winfo_rootx(), widget.winfo_rooty()
    return left, top, left + widget.winfo_width(), top + widget.winfo_height()


def covered(inside: tk.Misc) -> list[str]:
    """Return the pairs of widgets of one parent of which one covers a part of the other.

    What lies wholly inside of another is in front of it on purpose, as on a backdrop.
    """
    found = []
    for parent in walk(inside):
        if isinstance(parent, Button | Choice | Entry):
            continue  # a canvas behind a text, each of its own size
        shown = [w for w in parent.winfo_children() if w.winfo_ismapped() and w.winfo_manager() in ("grid", "pack")]
        for one, other in combinations(shown, 2):
            (left, top, right, bottom), (left2, top2, right2, bottom2) = box_of(one), box_of(other)
            width, height = min(right, right2) - max(left, left2), min(bottom, bottom2) - max(top, top2)
            smaller = (min(right - left, right2 - left2), min(bottom - top, bottom2 - top2))
            if width > _ROUNDING_PX and height > _ROUNDING_PX and (width, height) != smaller:
                found.append(f"{described(one)} and {described(other)} share {width} x {height} px")
    return found


def described(widget: tk.Misc) -> str:
    texts = [str(t[0]) for t in map(text_and_room, walk(widget)) if t is not None]
    return f"{type(widget).__name__} {' / '.join(texts)[:60]!r}"


def outside(inside: tk.Misc) -> list[str]:
    """Return the visible controls that reach beyond an edge of their window, where they cannot be scrolled into it."""
    edges = box_of(inside.winfo_toplevel())
    found = []
    for widget in walk(inside):
        if not isinstance(widget, Button | Choice | Entry | Text) or not widget.winfo_ismapped():
            continue
        left, top, right, bottom = box_of(widget)
        beyond = max(edges[0] - left, right - edges[2])
        if not can_be_scrolled(widget):
            beyond = max(beyond, edges[1] - top, bottom - edges[3])
        if beyond > _ROUNDING_PX:
            found.append(f"{described(widget)} is {beyond} px outside of its window")
    return found


def can_be_scrolled(widget: tk.Misc | None) -> bool:
    while widget is not None:
        if isinstance(widget, ScrollFrame | tk.Canvas):
            return True
        widget = widget.master
    return False


def too_low(inside: tk.Misc) -> list[str]:
    """Return the texts of which lines are cut off."""
    return [
        f"{described(w)} needs {w.winfo_reqheight()} px of height, and has {w.winfo_height()}"
        for w in walk(inside)
        if isinstance(w, Text) and w.winfo_ismapped() and w.winfo_reqheight() > w.winfo_height() + _ROUNDING_PX
    ]


def cut_headings(inside: tk.Misc) -> list[str]:
    """Return the headings of tables that are wider than their column, or in a column beyond the edge."""
    found = []
    for tree in walk(inside):
        if not isinstance(tree, ttk.Treeview) or not tree.winfo_ismapped():
            continue
        shown = tree.cget("displaycolumns")
        columns = ["#0", *(tree.cget("columns") if shown in (("#all",), "#all") else shown)]
        font = tkfont.Font(tree, font=ttk.Style(tree).lookup(f"{tree.cget('style') or 'Treeview'}.Heading", "font"))
        right = 0
        for column in columns:
            text, width = str(tree.heading(column, "text")), int(str(tree.column(column, "width")))
            right += width
            if font.measure(text) > width:
                found.append(f"heading {text!r}: {font.measure(text)} px in {width}")
            if right > tree.winfo_width() + _ROUNDING_PX and tree.winfo_width() > 1:
                found.append(f"column {text!r} ends at {right} px of {tree.winfo_width()}")
    return found


_RAW = re.compile(
    r"(?<![\w/.\\])[a-z0-9]+(?:\.[a-z0-9]+)*_[a-z0-9_.]*[a-z0-9](?![\w/\\])"  # the key of a setting, and no path
    r"|(?:[A-Z][a-z]+)+(?:Error|Exception)|<\w+ "
)
_FILE = re.compile(r".*\.(csv|gguf|html|json|png|safetensors|sqlite|toml|txt|yaml)")
_OF_OTHERS = {"scale_weight_norms"}
"""Names by which people know what a setting does."""


def is_raw(name: str) -> bool:
    return name not in _OF_OTHERS and not _FILE.fullmatch(name)


def raw_names(inside: tk.Misc) -> list[str]:
    """Return the texts with a key of the config, the name of a class, or an object as Python prints it."""
    texts = [str(w.cget("text")) for w in walk(inside) if isinstance(w, Text | Button) and w.winfo_ismapped()]
    return [f"{m.group()!r} in {t!r}" for t in texts for m in _RAW.finditer(t) if is_raw(m.group())]


def faults_of(inside: tk.Misc) -> list[str]:
    return [
        *(f"cut off: {t}" for t in cut_off(inside)),
        *cut_headings(inside),
        *too_low(inside),
        *outside(inside),
        *covered(inside),
        *raw_names(inside),
    ]


@pytest.fixture
def on_screen(
    open_window: Callable[..., Window], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, int, Mode], Window]]:
    def opens(size: str, percent: int, mode: Mode) -> Window:
        width, height = map(int, size.split("x"))
        monkeypatch.setattr(tk.Misc, "winfo_screenwidth", lambda _widget: width)
        monkeypatch.setattr(tk.Misc, "winfo_screenheight", lambda _widget: height)
        monkeypatch.setattr("ui.app.window.Theme", lambda _mode: Theme(mode, scale=percent / 100))
        ctk.set_widget_scaling(percent / 100)
        window = open_window(first_steps="demo")
        window.app.root.geometry(f"{width}x{height}+0+0")
        window.app.preferences.change(show_advanced=True)
        window.settle()
        return window

    yield opens
    ctk.set_widget_scaling(1.0)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("size", "percent"), SIZES)
def test_nothing_is_cut_off_covered_or_raw(
    on_screen: Callable[[str, int, Mode], Window],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    size: str,
    percent: int,
    mode: Mode,
) -> None:
    window = on_screen(size, percent, mode)
    fill(window, tmp_path)
    root, faults = window.app.root, dict[str, list[str]]()
    width, height = map(int, size.split("x"))
    for page in PAGES:
        window.open_page(page.key)
        window.settle()
        faults[page.key] = faults_of(root)
        window.app.preferences.change(is_simple=False)  # the simple page is that view
    for method in ("grpo", "dpo"):  # whose pages have other parts
        window.app.form.choose_variant("training.method", method)
        for key in ("rewards", "choose", "training"):
            window.open_page(key)
            window.settle()
            faults[f"{key} of {method}"] = faults_of(root)
    window.app.form.choose_variant("training.method", "denoise")
    close = dialogs.Window.close
    name, opened = "", set[str]()

    def look_at(dialog: dialogs.Window) -> None:
        dialog.update()
        opened.add(type(dialog).__name__)
        left, top, right, bottom = box_of(dialog)
        found = faults.setdefault(f"{name}, {type(dialog).__name__}", [])
        found += faults_of(dialog)
        if left < 0 or top < 0 or right > width or bottom > height:
            found.append(f"outside of the screen: {left}, {top} to {right}, {bottom}")

    def look_first(dialog: dialogs.Dialog) -> None:
        look_at(dialog)
        close(dialog)

    monkeypatch.setattr(dialogs.Dialog, "close", look_first)  # which is closed while it waits for its answer
    monkeypatch.setattr("ui.features.remote.rent_window.look_for_offers", lambda: OFFERS)
    for name, open_it in (openers(window, tmp_path) | more_openers(window, tmp_path)).items():  # noqa: B007 (read above)
        open_it()
        window.settle()
        for dialog in [w for w in walk(root) if isinstance(w, dialogs.Window)]:
            look_at(dialog)
        close_windows(window)
    assert not window_classes() - opened, "windows that are not opened here"
    found = [f"{where}: {fault}" for where, faults_there in faults.items() for fault in dict.fromkeys(faults_there)]
    names_of_here = (tmp_path.name, "-home/xdg_config_home", f"{platform.machine()!r} in")  # as they are named
    found = [fault for fault in found if not any(n in fault for n in names_of_here)]
    assert not found, "\n".join(found)


def test_each_kind_of_fault_is_found(root: tk.Tk) -> None:
    theme = Theme("dark")
    root.geometry("300x200+0+0")
    root.deiconify()
    frame = tk.Frame(root, width=300, height=200)
    frame.pack()
    frame.grid_propagate(flag=False)
    Text(frame, theme, "One text").grid(row=0, column=0, sticky="nw")
    Text(frame, theme, "another one").grid(row=0, column=0, sticky="nw", padx=(40, 0))
    Text(frame, theme, "training.batch_size fails with ConfigError", wrap_px=90).grid(row=1, column=0, sticky="w")
    wide = Text(frame, theme, "far " * 40)
    wide.grid(row=2, column=0, sticky="w")
    low = tk.Frame(frame, height=6, width=100)
    low.pack_propagate(flag=False)
    low.grid(row=3, column=0, sticky="w")
    Text(low, theme, "of which half can be seen").pack(fill="both", expand=True)
    root.update()
    assert [fault for fault in covered(frame) if "'another one'" in fault]
    assert [fault for fault in outside(frame) if "far far" in fault]
    assert [fault for fault in too_low(frame) if "of which half" in fault]
    assert len(raw_names(frame)) == 2
    frame.destroy()
