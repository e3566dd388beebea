"""Importing customtkinter without harm to other windows.

On Linux its import copies its fonts over those in ~/.fonts. That truncates the files for a moment, and a window of
another process that has mapped one of them is then killed (SIGBUS), with the run that trains in it.
"""

from __future__ import annotations

import filecmp
import importlib
import shutil
from pathlib import Path
from uuid import uuid4


def import_customtkinter() -> None:
    """Import it; fonts that are installed already stay, and others are replaced by a rename."""
    copy = shutil.copy
    shutil.copy = install_font  # type: ignore[assignment]
    try:
        importlib.import_module("customtkinter")
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
