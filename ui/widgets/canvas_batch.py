"""Many commands of a canvas in one call.

Every call of Tk gives up the interpreter lock, and waits for it again where a background thread works: hundreds of them
for one drawing would stall the window.
"""

from __future__ import annotations

import tkinter as tk
from typing import Any

_EACH = "commands {foreach command $commands {{*}$command}}"


class CanvasBatch:
    """Collects items; `draw` deletes the present ones and creates the collected."""

    def __init__(self, canvas: tk.Canvas) -> None:
        self._canvas = canvas
        self._commands: list[tuple[Any, ...]] = [(str(canvas), "delete", "all")]

    def add(self, kind: str, *coordinates: float, **options: Any) -> None:
        """Add an item of a kind ("text", "image", "rectangle", "line"), with the options of a canvas item."""
        words = [word for name, value in options.items() for word in (f"-{name}", _plain(value))]
        self._commands.append((str(self._canvas), "create", kind, *coordinates, *words))

    def draw(self) -> None:
        """Replace everything on the canvas by the collected items."""
        self._canvas.tk.call("apply", _EACH, tuple(self._commands))
        self._commands = []


def _plain(value: Any) -> Any:
    """Return a value as Tcl takes it: images and the like by name."""
    return value if isinstance(value, str | int | float | tuple) else str(value)
