"""Checks whether a window can be opened: tkinter, and a display."""

import importlib
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher.environment import Environment
from launcher.fix_commands import START, Machine, tkinter_command, xvfb_command
from launcher.messages import Failure, Sentence

HEADLESS = f"{START} train CONFIG.json"


def refuse_without_display(environ: Mapping[str, str]) -> None:
    """Raise `Failure` if it is certain that no window can open; takes no time."""
    if _draws_with_x11() and not environ.get("DISPLAY"):
        raise Failure(Sentence.NO_DISPLAY, reason="DISPLAY is not set", command=HEADLESS)


def refuse_untestable(environ: Mapping[str, str], machine: Machine) -> None:
    """Raise `Failure` if the window's tests cannot run: neither Xvfb nor a working display."""
    if not _draws_with_x11() or shutil.which("Xvfb"):
        return
    if not environ.get("DISPLAY") or window_error() is not None:
        raise Failure(Sentence.NO_TEST_DISPLAY, command=xvfb_command(machine))


def refuse_without_window(env: Environment, machine: Machine) -> None:
    """Raise `Failure` unless a window can be opened, by opening a hidden one."""
    refuse_without_tkinter(env, machine)
    reason = window_error() if _draws_with_x11() else None
    if reason is None:
        return
    if "display" in reason:
        raise Failure(Sentence.NO_DISPLAY, reason=reason, command=HEADLESS)
    raise _about_tkinter(Sentence.TK_BROKEN, env, machine, reason)


def refuse_without_tkinter(env: Environment, machine: Machine) -> None:
    """Raise `Failure` if this Python has no tkinter."""
    try:
        importlib.import_module("tkinter")
    except ImportError as error:
        raise _about_tkinter(Sentence.NO_TKINTER, env, machine, str(error)) from error


def window_error() -> str | None:
    """Return why a window cannot be opened; None if it can."""
    tkinter = importlib.import_module("tkinter")
    try:
        tkinter.Tk().destroy()
    except tkinter.TclError as error:
        return str(error).strip().splitlines()[0]
    return None


def _draws_with_x11() -> bool:
    return sys.platform not in ("win32", "darwin")


def _about_tkinter(sentence: Sentence, env: Environment, machine: Machine, reason: str) -> Failure:
    conda = env.prefix if env.kind == "conda" else None
    python = Path(getattr(sys, "_base_executable", None) or sys.executable)
    version = ".".join(map(str, sys.version_info[:3]))
    command = tkinter_command(machine, python, sys.version_info[:2], conda)
    return Failure(sentence, version=version, python=python, reason=reason, command=command)
