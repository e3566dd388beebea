"""Tk variables that can be garbage-collected on any thread.

Python's garbage collector runs on whichever thread allocates, including the training thread. A plain variable that is
collected there calls Tk and waits for the window. These leave their few bytes to Tk instead.
"""

from __future__ import annotations

import threading
import tkinter as tk


def _is_tk_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class TextVar(tk.StringVar):
    """A text variable."""

    def __del__(self) -> None:
        if _is_tk_thread():
            super().__del__()


class FlagVar(tk.BooleanVar):
    """A boolean variable."""

    def __del__(self) -> None:
        if _is_tk_thread():
            super().__del__()
