"""Undoing what customtkinter does to widgets that are not its own."""

from __future__ import annotations

import tkinter as tk


def release_master(master: tk.Misc) -> None:
    """Give a plain Tk widget its own `configure` back; call it after creating a customtkinter widget in it.

    customtkinter replaces `configure` of a plain master by a function that also colours the new child, and leaves it
    there when the child is destroyed: the next change of the master's colour then fails. Our widgets get their colours
    from the theme.
    """
    for name in ("config", "configure"):
        vars(master).pop(name, None)
