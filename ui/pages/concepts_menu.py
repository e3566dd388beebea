"""The menu of concepts."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from functools import partial

from ui.context import Context
from ui.widgets.menu import make_menu

EDIT_CAPTIONS = "edit_captions"  # an action that edits the captions of a folder, where the window has it
_BEFORE_A_LINE = ("Open folder", "Disable")


def concepts_menu(master: tk.Misc, context: Context, commands: Mapping[str, Callable[[], object]]) -> tk.Menu:
    """Return a menu of commands by label, with that of the caption editor after the first."""
    menu = make_menu(master, context.theme)
    has_captions = any(action.name == EDIT_CAPTIONS for action in context.actions)
    for number, (label, command) in enumerate(commands.items()):
        menu.add_command(label=label, command=command)
        if number == 0 and has_captions:
            menu.add_command(label="Edit captions…", command=partial(context.actions.run, EDIT_CAPTIONS))
        if label in _BEFORE_A_LINE:
            menu.add_separator()
    return menu
