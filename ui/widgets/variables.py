"""Tk variables that can be garbage-collected on any thread.

Python's garbage collector runs on whichever thread allocates, including the training thread. A plain variable that is
collected there calls Tk and waits for the window. These leave their few bytes to Tk instead.

Tk keeps the function of a trace, and all that it refers to, until the trace is removed. A window does that for the
variables whose master is in it.
"""

from __future__ import annotations

import threading
import tkinter as tk
from typing import Any

_OWN = "_own_variables"


def _is_tk_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class TextVar(tk.StringVar):
    """A text variable."""

    def __init__(self, master: tk.Misc | None = None, value: str | None = None, name: str | None = None) -> None:
        super().__init__(master, value, name)
        _note(self, master)

    def __del__(self) -> None:
        if _is_tk_thread():
            super().__del__()


class FlagVar(tk.BooleanVar):
    """A boolean variable."""

    def __init__(self, master: tk.Misc | None = None, value: bool | None = None, name: str | None = None) -> None:
        super().__init__(master, value, name)
        _note(self, master)

    def __del__(self) -> None:
        if _is_tk_thread():
            super().__del__()


def keep(variable: TextVar | FlagVar, values: dict[str, Any], name: str) -> None:
    """Set a variable to the value kept under a name, if there is one, and keep what it is set to from now on."""
    if name in values:
        variable.set(values[name])
    variable.trace_add("write", lambda *_: values.update({name: variable.get()}))


def variables_in(widget: tk.Misc) -> list[tk.Variable]:
    """Return the variables whose master is a widget or in it."""
    variables: list[tk.Variable] = list(vars(widget).get(_OWN, ()))
    for child in widget.winfo_children():
        variables += variables_in(child)
    return variables


def remove_traces(variables: list[tk.Variable]) -> None:
    """Remove all traces of variables that nothing follows any more."""
    for variable in variables:
        for modes, name in variable.trace_info():
            variable.trace_remove(modes, name)  # type: ignore[arg-type]  # it also takes several modes


def _note(variable: tk.Variable, master: Any) -> None:
    if master is not None:
        vars(master).setdefault(_OWN, []).append(variable)
