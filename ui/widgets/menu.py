"""Themed menus."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from typing import Any

from ui.widgets.theme import Theme

EDGE: Mapping[str, Any] = {"relief": "ridge", "borderwidth": 2}
"""A line around menus, which otherwise merge with the fields below them, of the same colour."""
_EDGE_PX = 8
_LINE_FONT = ("TkDefaultFont", -1)  # of an entry that is as low as it can be


class Menu(tk.Menu):
    """A menu in the colours of the current mode, with dim lines between its groups.

    Tk draws a separator in a light shade of the background: bright in dark mode. A low entry is the line instead.
    """

    def __init__(self, master: tk.Misc, theme: Theme) -> None:
        colour = theme.colour
        super().__init__(
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
        self._line = colour("line")

    def add_separator(self, cnf: dict[str, Any] | None = None, *, background: str = "") -> None:
        """Add a line."""
        self.add_command(cnf or {}, state="disabled", font=_LINE_FONT, background=background or self._line)


def is_line(menu: tk.Menu, index: int | str) -> bool:
    """Return whether an entry is a line between groups."""
    return menu.type(index) == "command" and not menu.entrycget(index, "label")


def make_menu(master: tk.Misc, theme: Theme) -> tk.Menu:
    """Return an empty menu in the colours of the current mode; the widget's last one is destroyed."""
    for old in [child for child in master.winfo_children() if isinstance(child, tk.Menu)]:
        old.destroy()
    return Menu(master, theme)


def add_submenu(menu: tk.Menu, theme: Theme, label: str) -> tk.Menu:
    """Add an empty submenu and return it."""
    inner = Menu(menu, theme)
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
        first = next((n for n in ends if is_line(menu, n - 1)), first + most)
        first += is_line(menu, first)  # which cannot begin a column
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
