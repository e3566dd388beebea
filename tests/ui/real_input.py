"""Real pointer and key events, sent to the X server by xdotool; they cover what synthetic events cannot."""

from __future__ import annotations

import subprocess
import tkinter as tk
from collections.abc import Callable, Iterator

from tests.ui.conftest import Window

FILE_DIALOG = ".__tk_filedialog"
FILE_ENTRY = f"{FILE_DIALOG}.contents.f2.ent"
_POLL_MS = 20
_MAX_POLLS = 500


def xdotool(*arguments: str) -> None:
    """Send input to the X server."""
    subprocess.run(["xdotool", *arguments], check=True, timeout=20)


def click(window: Window, widget: tk.Misc, button: int = 1, *, from_left_px: int = 40) -> None:
    """Move the pointer onto a widget, at most some pixels from its left edge, and click."""
    window.settle()
    x = widget.winfo_rootx() + min(from_left_px, widget.winfo_width() // 2)
    y = widget.winfo_rooty() + widget.winfo_height() // 2
    xdotool("mousemove", str(x), str(y))
    window.settle()
    xdotool("click", str(button))
    window.settle()


def keys(window: Window, *names: str) -> None:
    """Press keys in order."""
    for name in names:
        xdotool("key", name)
        window.settle()


def answer_file_dialog_by_hand(root: tk.Tk, name: str, *, first: tuple[str, ...] = ()) -> None:
    """Click into the entry of the file dialog that opens next, press some keys, type a file's name and press Return.

    The dialog has its own event loop, so this runs in Tk callbacks. If a step does not happen, the
    dialog is cancelled, and the test then fails.
    """
    tcl = root.tk

    def is_viewable() -> bool:
        return bool(int(tcl.call("winfo", "exists", FILE_ENTRY)) and int(tcl.call("winfo", "viewable", FILE_ENTRY)))

    def steps() -> Iterator[Callable[[], bool]]:
        yield is_viewable
        left, top, width, height = (
            int(tcl.call("winfo", what, FILE_ENTRY)) for what in ("rootx", "rooty", "width", "height")
        )
        xdotool("mousemove", str(left + width // 2), str(top + height // 2), "click", "1")
        yield lambda: str(tcl.call("focus")) == FILE_ENTRY
        xdotool("key", *first, "type", name) if first else xdotool("type", name)
        yield lambda: str(tcl.call(FILE_ENTRY, "get")) == name
        xdotool("key", "Return")

    def run_steps(script: Iterator[Callable[[], bool]], has_come: Callable[[], bool], polls_left: int) -> None:
        if has_come():
            following = next(script, None)
            if following is not None:
                run_steps(script, following, _MAX_POLLS)
        elif polls_left:
            root.after(_POLL_MS, run_steps, script, has_come, polls_left - 1)
        else:
            tcl.call("set", "::tk::Priv(selectFilePath)", "")

    script = steps()
    run_steps(script, next(script), _MAX_POLLS)
