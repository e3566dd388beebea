"""Files and folders dropped on the window from a file manager, where tkinterdnd2 is installed."""

from __future__ import annotations

import logging
import tkinter as tk
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


def accept_paths(root: tk.Tk, widget: tk.Misc, on_drop: Callable[[Sequence[Path]], object]) -> bool:
    """Call `on_drop` with the paths dropped on a widget or on what is in it; return whether dropping works here.

    Where something in the widget accepts paths itself, that is asked instead.
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
