"""Shapes with smooth edges on a canvas, as photos: Tk itself draws jagged ones."""

from __future__ import annotations

import tkinter as tk
from functools import partial

from PIL import Image, ImageDraw, ImageTk

from ui.widgets.theme import Theme

_FINER = 4  # shapes are drawn at so many times their size, then reduced


class Shapes:
    """Rounded plates and switches of one canvas as photos, each drawn once."""

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
