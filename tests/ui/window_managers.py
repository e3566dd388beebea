"""A window manager on the tests' display: it also controls the focus and the frames of windows."""

from __future__ import annotations

import shutil
import subprocess
import time
import tkinter as tk
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

WINDOW_MANAGERS = ("openbox", "metacity", "xfwm4", "twm")
_PATIENCE_SECONDS = 120.0


@contextmanager
def managed(root: tk.Tk) -> Iterator[None]:
    """Let the first window manager that is installed manage the display."""
    name = next((n for n in WINDOW_MANAGERS if shutil.which(n)), None)
    if name is None:
        pytest.skip("There is no window manager; install the package openbox to run this test.")
    process = subprocess.Popen([name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for_frame(root, process)
        yield
        root.withdraw()  # a manager that ends returns its windows, and should have none of ours by then
        root.update()
    finally:
        process.terminate()
        process.wait(timeout=_PATIENCE_SECONDS)


def _wait_for_frame(root: tk.Tk, process: subprocess.Popen[bytes]) -> None:
    """Show the window until the manager has put its frame around it, and hide it until the frame is gone.

    A window that is shown again while its manager still hides it becomes an icon.
    """
    root.geometry("+0+0")  # a fixed position, so that no manager requests one
    root.deiconify()
    _wait_until(lambda: _has_frame(root), root, process, "the window manager put no frame around the window")
    root.withdraw()
    _wait_until(lambda: not _has_frame(root), root, process, "the window manager left its frame around the window")


def _has_frame(root: tk.Tk) -> bool:
    return int(root.wm_frame(), 16) != root.winfo_id()


def _wait_until(condition: Callable[[], bool], root: tk.Tk, process: subprocess.Popen[bytes], failure: str) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        root.update()
        assert process.poll() is None, f"the window manager ended with {process.returncode}"
        assert time.monotonic() < deadline, failure
