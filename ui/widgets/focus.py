"""Which widget has the keyboard's focus."""

from __future__ import annotations

import tkinter as tk


def focused_widget(widget: tk.Misc) -> tk.Misc | None:
    """Return the widget of the program that has the focus, on the display of a given one; else None.

    Tk makes widgets by itself (its file dialog on X11, the clones of menus), and `focus_get` raises KeyError for them.
    """
    try:
        return widget.focus_get()
    except KeyError:
        return None
