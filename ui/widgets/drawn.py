"""Small shapes drawn with smooth edges, as Tk photos: rounded plates and switches for canvases, which draw jagged ones."""

from __future__ import annotations

import tkinter as tk
from functools import partial

from PIL import Image, ImageDraw, ImageTk

from ui.theme import Theme

_FINER = 4  # drawn at so many times the size, then reduced


class Shapes:
    """The shapes of one canvas by size and colours, each drawn once."""

    def __init__(self, owner: tk.Misc, theme: Theme) -> None:
        self._owner, self._theme = owner, theme
        self._photos: dict[tuple[object, ...], ImageTk.PhotoImage] = {}

    def plate(
        self, width_px: int, height_px: int, radius_px: int, *, fill: str, on: str, line: str = "", line_px: int = 0
    ) -> ImageTk.PhotoImage:
        """Return a rounded rectangle in the colour of a token, with a frame if `line_px` is not 0."""
        colour = self._theme.colour
        shape = (radius_px, colour(fill), colour(line or fill), line_px)
        return self._drawn(("plate", width_px, height_px, *shape, colour(on)), partial(_plate, *shape))

    def switch(self, width_px: int, height_px: int, *, is_on: bool, on: str) -> ImageTk.PhotoImage:
        """Return a switch."""
        colour = self._theme.colour
        shape = (colour("accent" if is_on else "track"), colour("knob"), is_on)
        return self._drawn(("switch", width_px, height_px, *shape, colour(on)), partial(_switch, *shape))

    def forget(self) -> None:
        """Forget all shapes, on the Tk thread and not on the garbage collector's."""
        self._photos.clear()

    def _drawn(self, key: tuple[object, ...], draw: object) -> ImageTk.PhotoImage:
        if key not in self._photos:
            _, width, height, *_others, background = key
            assert isinstance(width, int) and isinstance(height, int) and callable(draw)
            fine = Image.new("RGB", (width * _FINER, height * _FINER), str(background))
            draw(ImageDraw.Draw(fine), width * _FINER - 1, height * _FINER - 1)
            image = fine.resize((width, height), Image.Resampling.BOX)
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
