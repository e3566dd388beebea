"""Themed menus."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from typing import Any

from ui.widgets.theme import Theme

EDGE: Mapping[str, Any] = {"relief": "ridge", "borderwidth": 2}
"""A line around menus, which otherwise merge with the fields below them, of the same colour."""
_EDGE_PX = 8


def make_menu(master: tk.Misc, theme: Theme) -> tk.Menu:
    """Return an empty menu in the colours of the current mode; the widget's last one is destroyed."""
    for old in [child for child in master.winfo_children() if isinstance(child, tk.Menu)]:
        old.destroy()
    return _menu(master, theme)


def add_submenu(menu: tk.Menu, theme: Theme, label: str) -> tk.Menu:
    """Add an empty submenu and return it."""
    inner = _menu(menu, theme)
    menu.add_cascade(label=label, menu=inner)
    return inner


def open_at(menu: tk.Menu, button: tk.Misc, *, above: bool = False) -> None:
    """Open a menu below a button, or above it."""
    break_into_columns(menu)
    menu.update_idletasks()  # its height is not known before
    offset = -menu.winfo_reqheight() if above else button.winfo_height()
    menu.tk_popup(button.winfo_rootx(), button.winfo_rooty() + offset)


def break_into_columns(menu: tk.Menu) -> None:
    """Break a menu that is higher than the screen into columns, if possible after a separator."""
    menu.update_idletasks()
    last, height, room = menu.index("end"), menu.winfo_reqheight(), menu.winfo_screenheight() - 2 * _EDGE_PX
    if last is None or height <= room:
        return
    most = max(1, (last + 1) * room // height - 1)  # entries of a column
    first = 0
    while last + 1 - first > most:
        ends = range(first + most, first + most // 2, -1)
        first = next((n for n in ends if menu.type(n - 1) == "separator"), first + most)
        first += menu.type(first) == "separator"  # which cannot begin a column
        menu.entryconfigure(first, columnbreak=True)


def keep_on_screen(menu: tk.Menu, show_all: Callable[[], object]) -> None:
    """Cut a menu that is higher than the screen, where Tk cannot scroll it; "More…" at its end calls `show_all`."""
    menu.update_idletasks()
    last, height, room = menu.index("end"), menu.winfo_reqheight(), menu.winfo_screenheight() - 2 * _EDGE_PX
    if last is None or height <= room:
        return
    kept = max(1, (last + 1) * room // height - 1)
    menu.delete(kept, "end")
    menu.add_command(label="More…", command=show_all)


def _menu(master: tk.Misc, theme: Theme) -> tk.Menu:
    colour = theme.colour
    return tk.Menu(
        master,
        tearoff=False,
        font=theme.font("body"),
        background=colour("menu"),
        foreground=colour("text"),
        activebackground=colour("selection"),
        activeforeground=colour("text"),
        disabledforeground=colour("faint"),
        **EDGE,
        activeborderwidth=0,
    )
