"""The widget with the keyboard focus."""

from __future__ import annotations

import tkinter as tk


def focused_widget(widget: tk.Misc) -> tk.Misc | None:
    """Return the program's widget with the focus on the display of a given widget; else None.

    Tk creates widgets of its own (its file dialog on X11, the clones of menus); `focus_get` raises KeyError for them.
    """
    try:
        return widget.focus_get()
    except KeyError:
        return None
