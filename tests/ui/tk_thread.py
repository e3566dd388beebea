"""The interpreter of Tk, with a check that only the main thread calls it."""

from __future__ import annotations

import logging
import sys
import threading
import tkinter as tk
from types import FrameType
from typing import Any

_log = logging.getLogger(__name__)


class MainThreadTk:
    """Passes every call to Tk on; one from another thread is refused and logged as an error, which fails the test.

    Tk itself would only be slow then, or hang, or crash now and then.
    """

    def __init__(self, interpreter: Any) -> None:
        self._interpreter = interpreter
        self._main = threading.get_ident()
        self._call = interpreter.call
        # They convert values, in any thread, and are half of all that tkinter looks up here.
        self.getint, self.getdouble, self.splitlist = interpreter.getint, interpreter.getdouble, interpreter.splitlist

    def call(self, *arguments: Any) -> Any:
        if threading.get_ident() != self._main:
            self._report(arguments)
        return self._call(*arguments)

    def __getattr__(self, name: str) -> Any:
        if threading.get_ident() != self._main:
            self._report((name,))
        return getattr(self._interpreter, name)

    def _report(self, arguments: tuple[Any, ...]) -> None:
        """Log where the call came from, and refuse it.

        Deleting an image or a variable that the garbage collector found is only refused: collections start in any
        thread, and tkinter's finalizers ignore the error.
        """
        if not _is_finalizer(sys._getframe(2)):
            thread = threading.current_thread().name
            _log.error("The thread %s called Tk: %s", thread, arguments, stack_info=True)
        raise RuntimeError("only the main thread may call Tk")


def _is_finalizer(frame: FrameType | None) -> bool:
    """Whether a call comes from a finalizer of tkinter."""
    return frame is not None and frame.f_code.co_name == "__del__"


def log_background_errors(root: tk.Tk) -> None:
    """Log the errors that Tk itself reports, which fails the test; in the program it shows a dialog of its own."""
    root.createcommand("bgerror", lambda message: _log.error("Tk reports: %s", message))


def check_threads(root: tk.Tk) -> None:
    """Let a root, and all widgets that are created in it from now on, call Tk through the check."""
    root.tk = MainThreadTk(root.tk)
