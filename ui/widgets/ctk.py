"""customtkinter, imported without harm to other windows: the widgets import it from here.

On Linux its import copies its fonts over those in ~/.fonts. That truncates the files for a moment, and a window of
another process that has mapped one of them is then killed (SIGBUS), with the run that trains in it.
"""

from __future__ import annotations

import filecmp
import importlib
import shutil
import tkinter as tk
from pathlib import Path
from typing import Any
from uuid import uuid4


def _import_customtkinter() -> Any:
    """Import it; fonts that are installed already stay, and others are replaced by a rename."""
    copy = shutil.copy
    shutil.copy = install_font  # type: ignore[assignment]
    try:
        return importlib.import_module("customtkinter")
    finally:
        shutil.copy = copy


def install_font(source: str, target: str) -> str:
    """Copy a file into a folder, unless an equal one is there; a file that is in use keeps its content."""
    destination = Path(target) / Path(source).name if Path(target).is_dir() else Path(target)
    if destination.exists() and filecmp.cmp(source, destination, shallow=False):
        return str(destination)
    temporary = destination.with_name(f".{destination.name}.{uuid4().hex[:8]}")
    try:
        shutil.copyfile(source, temporary)
        temporary.replace(destination)
    finally:
        temporary.unlink(missing_ok=True)
    return str(destination)


def release_master(master: tk.Misc) -> None:
    """Give a plain Tk widget its own `configure` back; call it after creating a customtkinter widget in it.

    customtkinter replaces `configure` of a plain master by a function that also colours the new child, and leaves it
    there when the child is destroyed: the next change of the master's colour then fails. Our widgets get their colours
    from the theme.
    """
    for name in ("config", "configure"):
        vars(master).pop(name, None)


ctk = _import_customtkinter()
