"""The image of a switch, for rows of tables, which hold images but no widgets."""

from __future__ import annotations

import tkinter as tk

from PIL import Image, ImageDraw, ImageTk

from ui.widgets.theme import Theme

WIDTH, HEIGHT = 34, 18  # design pixels, with the distance to the text
_TRACK, _INSET = 28, 3
_FINER = 4  # drawn larger and reduced, for smooth edges


class SwitchImages:
    """The images of a switch that is on and of one that is off, in the colours of the current mode."""

    def __init__(self, master: tk.Misc, theme: Theme) -> None:
        self._master = master
        self._theme = theme
        self._drawn: dict[tuple[str, bool], ImageTk.PhotoImage] = {}

    def of(self, *, is_on: bool) -> ImageTk.PhotoImage:
        """Return the image of a state."""
        key = (self._theme.mode, is_on)
        if key not in self._drawn:
            self._drawn[key] = ImageTk.PhotoImage(draw_switch(self._theme, is_on=is_on), master=self._master)
        return self._drawn[key]


def draw_switch(theme: Theme, *, is_on: bool) -> Image.Image:
    """Return a switch on a transparent ground."""
    size = (theme.px(WIDTH), theme.px(HEIGHT))
    image = Image.new("RGBA", (size[0] * _FINER, size[1] * _FINER))
    draw = ImageDraw.Draw(image)
    unit = theme.scale * _FINER
    right, bottom = _TRACK * unit, image.height - unit
    draw.rounded_rectangle((0, unit, right, bottom), radius=bottom, fill=theme.colour("accent" if is_on else "switch"))
    side = bottom - unit - 2 * _INSET * unit
    left = right - side - _INSET * unit if is_on else _INSET * unit
    top = unit + _INSET * unit
    draw.ellipse((left, top, left + side, top + side), fill=theme.colour("switch_knob"))
    return image.resize(size, Image.Resampling.LANCZOS)
