"""The connection to the display, which ends with the X server, or when the user is logged out."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_HANDLER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


@contextmanager
def at_lost_display(act: Callable[[], object]) -> Iterator[None]:
    """Call `act` if the connection is lost within the context, and end the process with code 1 after it.

    `act` must not use Tk. Without it Xlib ends the process at once, also in the middle of a run's step. Where there is
    no X, as on Windows, nothing is done.
    """
    set_handler = _find_setter()
    if set_handler is None:
        yield
        return

    def handle(_display: int) -> int:
        try:
            act()
        finally:
            os._exit(1)  # Xlib allows no way back, and Tcl's own exit would use the display

    handler = _HANDLER(handle)
    before = set_handler(ctypes.cast(handler, ctypes.c_void_p))
    try:
        yield
    finally:
        set_handler(before)


def _find_setter() -> Any:
    """Return Xlib's `XSetIOErrorHandler` from the library that Tk has loaded; None if it has loaded none."""
    if sys.platform != "linux":
        return None
    try:
        setter = ctypes.CDLL("libX11.so.6", mode=os.RTLD_NOW | os.RTLD_NOLOAD).XSetIOErrorHandler
    except (OSError, AttributeError):  # Tk has it built in
        return None
    setter.argtypes, setter.restype = [ctypes.c_void_p], ctypes.c_void_p
    return setter
