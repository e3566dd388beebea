"""Tk variables that may be collected on any thread.

Python's collector runs on whichever thread allocates, so also on the training thread and the background ones. A plain
variable that dies there calls Tk from there, and waits for the window to answer. These leave their few bytes to Tk.
"""

from __future__ import annotations

import threading
import tkinter as tk


def _is_tk_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class TextVar(tk.StringVar):
    """A variable that holds text."""

    def __del__(self) -> None:
        if _is_tk_thread():
            super().__del__()


class FlagVar(tk.BooleanVar):
    """A variable that is true or false."""

    def __del__(self) -> None:
        if _is_tk_thread():
            super().__del__()
