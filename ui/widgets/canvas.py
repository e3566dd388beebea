"""Canvases that are drawn anew as a whole: their items in one call of Tk."""

from __future__ import annotations

import tkinter as tk
from abc import ABC, abstractmethod
from typing import Any

from ui.widgets.theme import Theme

_EACH = "commands {foreach command $commands {{*}$command}}"


class CanvasBatch:
    """Collects items; `draw` deletes the present ones and creates the collected.

    Every call of Tk gives up the interpreter lock, and waits for it again where a background thread works: hundreds of
    them for one drawing would stall the window.
    """

    def __init__(self, canvas: tk.Canvas) -> None:
        self._canvas = canvas
        self._commands: list[tuple[Any, ...]] = []

    def add(self, kind: str, *coordinates: float, **options: Any) -> None:
        """Add an item of a kind ("text", "image", "rectangle", "line"), with the options of a canvas item."""
        words = [word for name, value in options.items() for word in (f"-{name}", _plain(value))]
        self._commands.append((str(self._canvas), "create", kind, *coordinates, *words))

    def draw(self) -> None:
        """Replace everything on the canvas by the collected items."""
        delete = (str(self._canvas), "delete", "all")
        self._canvas.tk.call("apply", _EACH, (delete, *self._commands))
        self._commands = []


def _plain(value: Any) -> Any:
    """Return a value as Tcl takes it: images and the like by name."""
    return value if isinstance(value, str | int | float | tuple) else str(value)


class DrawnCanvas(tk.Canvas, ABC):
    """A canvas on the colour of a token. `draw` is called when its size or the mode changes.

    A subclass calls `apply_theme` once it has what it draws.
    """

    def __init__(self, master: tk.Misc, theme: Theme, *, on: str, size_px: tuple[int, int]) -> None:
        width, height = map(theme.px, size_px)
        super().__init__(master, highlightthickness=0, borderwidth=0, width=width, height=height)
        self.theme = theme
        self.on = on
        self.bind("<Configure>", lambda _e: self.draw())

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        self.configure(background=self.theme.colour(self.on))
        self.draw()

    @abstractmethod
    def draw(self) -> None:
        """Redraw everything."""


def rounded_corners(right: float, bottom: float, radius: float) -> list[float]:
    """Return the points of a smooth polygon that is a rectangle with rounded corners, its top left one at 0, 0."""
    points, reach = [], 2 * radius  # Tk bends the line halfway between a point and the corner
    for x, y, towards_x, towards_y in ((0, 0, 1, 1), (right, 0, -1, 1), (right, bottom, -1, -1), (0, bottom, 1, -1)):
        along, across = (x + towards_x * reach, y), (x, y + towards_y * reach)
        before, after = (across, along) if towards_x == towards_y else (along, across)
        points += [*before, *before, x, y, *after, *after]  # between two equal points it is straight
    return points
