"""Themed menus."""

from __future__ import annotations

import tkinter as tk

from ui.theme import Theme


def make_menu(master: tk.Misc, theme: Theme) -> tk.Menu:
    """Return an empty menu in the colours of the current mode; the widget's last one is destroyed."""
    for old in [child for child in master.winfo_children() if isinstance(child, tk.Menu)]:
        old.destroy()
    colour = theme.colour
    return tk.Menu(
        master,
        tearoff=False,
        font=theme.font("body"),
        background=colour("field"),
        foreground=colour("text"),
        activebackground=colour("selection"),
        activeforeground=colour("text"),
        disabledforeground=colour("faint"),
        relief="flat",
        borderwidth=theme.px(4),
        activeborderwidth=0,
    )
