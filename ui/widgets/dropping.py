"""Drag and drop of files and folders from a file manager, if tkinterdnd2 is installed."""

from __future__ import annotations

import logging
import tkinter as tk
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


def accept_paths(root: tk.Tk, widget: tk.Misc, on_drop: Callable[[Sequence[Path]], object]) -> bool:
    """Call `on_drop` with the paths dropped on a widget or its children; return whether dropping works.

    A child that accepts paths itself takes precedence.
    """
    try:
        from tkinterdnd2 import DND_FILES, TkinterDnD  # an optional package

        TkinterDnD._require(root)
    except (ImportError, RuntimeError, tk.TclError):
        _log.info("Drag and drop is not available here")
        return False

    def dropped(event: Any) -> str:
        on_drop([Path(name) for name in root.tk.splitlist(event.data)])
        return str(event.action)

    target: Any = widget
    target.drop_target_register(DND_FILES)
    target.dnd_bind("<<Drop>>", dropped)
    return True
