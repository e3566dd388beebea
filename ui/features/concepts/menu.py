"""The menu of concepts."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping

from ui.widgets.menu import make_menu
from ui.widgets.theme import Theme

_BEFORE_A_LINE = ("Open folder", "Disable")


def concepts_menu(master: tk.Misc, theme: Theme, commands: Mapping[str, Callable[[], object]]) -> tk.Menu:
    """Return a menu of commands by label."""
    menu = make_menu(master, theme)
    for label, command in commands.items():
        menu.add_command(label=label, command=command)
        if label in _BEFORE_A_LINE:
            menu.add_separator()
    return menu
