"""Canvases that are drawn anew as a whole: their items in one call of Tk, and shapes with smooth edges."""

from __future__ import annotations

import tkinter as tk
from abc import ABC, abstractmethod
from functools import partial
from typing import Any

from PIL import Image, ImageDraw, ImageTk

from ui.widgets.theme import Theme

_FINER = 4  # shapes are drawn at so many times their size, then reduced
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


class Shapes:
    """Rounded plates and switches of one canvas as photos, each drawn once: Tk itself draws jagged ones."""

    def __init__(self, owner: tk.Misc, theme: Theme) -> None:
        self._owner, self._theme = owner, theme
        self._photos: dict[tuple[object, ...], ImageTk.PhotoImage] = {}

    def plate(
        self, width_px: int, height_px: int, radius_px: int, *, fill: str, on: str, line: str = "", line_px: int = 0
    ) -> ImageTk.PhotoImage:
        """Return a rounded rectangle in the colour of a token, with a frame if `line_px` is not 0."""
        colour = self._theme.colour
        shape = (radius_px, colour(fill), colour(line or fill), line_px)
        return self._photo(width_px, height_px, colour(on), partial(_plate, *shape))

    def switch(self, width_px: int, height_px: int, *, is_on: bool, on: str) -> ImageTk.PhotoImage:
        """Return a switch."""
        colour = self._theme.colour
        shape = (colour("accent" if is_on else "switch"), colour("switch_knob"), is_on)
        return self._photo(width_px, height_px, colour(on), partial(_switch, *shape))

    def forget(self) -> None:
        """Forget all shapes, on the Tk thread and not on the garbage collector's."""
        self._photos.clear()

    def _photo(self, width_px: int, height_px: int, on: str, draw: partial[None]) -> ImageTk.PhotoImage:
        key = (width_px, height_px, on, draw.func, draw.args)
        if key not in self._photos:
            fine = Image.new("RGB", (width_px * _FINER, height_px * _FINER), on)
            draw(ImageDraw.Draw(fine), fine.width - 1, fine.height - 1)
            image = fine.resize((width_px, height_px), Image.Resampling.BOX)
            self._photos[key] = ImageTk.PhotoImage(image, master=self._owner)
        return self._photos[key]


def _plate(radius: int, fill: str, line: str, line_px: int, draw: ImageDraw.ImageDraw, right: int, bottom: int) -> None:
    draw.rounded_rectangle(
        (0, 0, right, bottom), radius * _FINER, fill=fill, outline=line if line_px else None, width=line_px * _FINER
    )


def _switch(fill: str, knob: str, is_on: bool, draw: ImageDraw.ImageDraw, right: int, bottom: int) -> None:
    draw.rounded_rectangle((0, 0, right, bottom), bottom / 2, fill=fill)
    inset = bottom * 0.16
    left = right - bottom + inset if is_on else inset
    draw.ellipse((left, inset, left + bottom - 2 * inset, bottom - inset), fill=knob)


def rounded_corners(right: float, bottom: float, radius: float) -> list[float]:
    """Return the points of a smooth polygon that is a rectangle with rounded corners, its top left one at 0, 0."""
    points, reach = [], 2 * radius  # Tk bends the line halfway between a point and the corner
    for x, y, towards_x, towards_y in ((0, 0, 1, 1), (right, 0, -1, 1), (right, bottom, -1, -1), (0, bottom, 1, -1)):
        along, across = (x + towards_x * reach, y), (x, y + towards_y * reach)
        before, after = (across, along) if towards_x == towards_y else (along, across)
        points += [*before, *before, x, y, *after, *after]  # between two equal points it is straight
    return points
