"""Real pointer and key events, sent to the X server by xdotool; they cover what synthetic events cannot."""

from __future__ import annotations

import subprocess
import tkinter as tk
from collections.abc import Callable, Iterator
from tkinter import ttk

from tests.ui.conftest import Window
from ui.widgets.files.dialog import FileDialog
from ui.widgets.panel import focused_widget

_POLL_MS = 20
_MAX_POLLS = 6000  # two minutes, as elsewhere


def xdotool(*arguments: str) -> None:
    """Send input to the X server."""
    subprocess.run(["xdotool", *arguments], check=True, timeout=20)


def click(window: Window, widget: tk.Misc, button: int = 1, *, from_left_px: int = 40) -> None:
    """Click on a widget, at most some pixels from its left edge; the screen may be narrower than the window."""

    def point() -> tuple[int, int]:
        x = widget.winfo_rootx() + min(from_left_px, widget.winfo_width() // 2)
        return x, widget.winfo_rooty() + widget.winfo_height() // 2

    _click_at(window, widget, point, button)


def click_row(window: Window, tree: ttk.Treeview, row: str) -> None:
    """Click on a row of a tree."""

    def point() -> tuple[int, int]:
        x, y, *_ = (int(edge) for edge in tree.bbox(row))
        return tree.winfo_rootx() + x + 40, tree.winfo_rooty() + y + 8

    _click_at(window, tree, point)


def _click_at(window: Window, widget: tk.Misc, point: Callable[[], tuple[int, int]], button: int = 1) -> None:
    def found() -> tk.Misc | None:
        return widget.winfo_containing(*point())

    def is_under_the_pointer() -> bool:
        """Follow the widget: a page may still be laid out, and a window manager moves a window when it likes."""
        if widget.winfo_pointerxy() != point():
            xdotool("mousemove", *map(str, point()))
        return widget.winfo_pointerxy() == point() and _is_within(found(), widget)

    window.settle()
    _move_onto_screen(window, widget.winfo_toplevel(), point)
    xdotool("mousemove", *map(str, point()))
    window.settle()
    try:
        window.wait_until(is_under_the_pointer, f"the pointer to be over {widget}")
    except AssertionError as error:
        raise AssertionError(
            f"{error}; at {point()} there is {found()}, the pointer is at {widget.winfo_pointerxy()}"
        ) from error
    xdotool("click", str(button))
    window.settle()


def _is_within(found: tk.Misc | None, widget: tk.Misc) -> bool:
    return found is not None and str(found).startswith(str(widget))


def _move_onto_screen(window: Window, top: tk.Tk | tk.Toplevel, point: Callable[[], tuple[int, int]]) -> None:
    """Move a window until a point of it is on the screen, where a pointer can reach it."""
    size = top.winfo_screenwidth(), top.winfo_screenheight()

    def off_by() -> list[int]:
        pairs = zip(point(), size, strict=True)
        return [0 if 0 <= place < length else length // 2 - place for place, length in pairs]

    if any(off_by()):
        x, y = off_by()
        top.geometry(f"+{top.winfo_x() + x}+{top.winfo_y() + y}")
        window.wait_until(lambda: not any(off_by()), "a window at its new place")
        window.settle()


def keys(window: Window, *names: str) -> None:
    """Press keys in order."""
    for name in names:
        xdotool("key", name)
        window.settle()


def _middle(widget: tk.Misc) -> tuple[int, int]:
    return widget.winfo_rootx() + widget.winfo_width() // 2, widget.winfo_rooty() + widget.winfo_height() // 2


def _is_laid_out(widget: tk.Misc) -> bool:
    """Whether a click into the middle of a widget would reach it: a window may be shown before its layout is done."""
    return widget.winfo_viewable() == 1 and widget.winfo_containing(*_middle(widget)) is widget


def answer_file_dialog_by_hand(root: tk.Tk, name: str, *, first: tuple[str, ...] = ()) -> None:
    """Click into the entry of the file dialog that opens next, press some keys, type a file's name and press Return.

    The dialog has its own event loop, so this runs in Tk callbacks. If a step does not happen, the
    dialog is cancelled, and the test then fails.
    """

    def dialog() -> FileDialog | None:
        return next((w for w in root.winfo_children() if isinstance(w, FileDialog) and w.grab_status()), None)

    def is_ready(shown: FileDialog) -> bool:
        is_listed = bool(shown.path.get())
        return is_listed and focused_widget(root) is shown.board.canvas and _is_laid_out(shown.path_entry.tk_entry)

    def steps() -> Iterator[Callable[[], bool]]:
        yield lambda: (shown := dialog()) is not None and is_ready(shown)
        shown = dialog()
        assert shown is not None
        entry = shown.path_entry.tk_entry
        xdotool("mousemove", *map(str, _middle(entry)))
        yield lambda: entry.winfo_pointerxy() == _middle(entry)  # a window manager may have moved the dialog since
        xdotool("click", "1")
        yield lambda: focused_widget(root) is entry
        xdotool("key", *first, "ctrl+a")
        yield lambda: entry.selection_present()
        xdotool("type", name)
        yield lambda: shown.path.get() == name
        xdotool("key", "Return")

    def run_steps(script: Iterator[Callable[[], bool]], has_come: Callable[[], bool], polls_left: int) -> None:
        if has_come():
            following = next(script, None)
            if following is not None:
                run_steps(script, following, _MAX_POLLS)
        elif polls_left:
            root.after(_POLL_MS, run_steps, script, has_come, polls_left - 1)
        elif (left := dialog()) is not None:
            left.close()

    script = steps()
    run_steps(script, next(script), _MAX_POLLS)
