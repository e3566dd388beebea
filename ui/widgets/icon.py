"""The icon of the window."""

from __future__ import annotations

import tkinter as tk
from typing import Any

from PIL import Image, ImageDraw, ImageTk

from ui.widgets.theme import COLOURS

_SIDE_PX = 64
_OVERSAMPLING = 4


def set_icon(root: tk.Tk) -> None:
    """Give the window its icon."""
    photo: Any = ImageTk.PhotoImage(draw_icon(), master=root)
    root.iconphoto(True, photo)
    root.after_idle(lambda: photo)  # Tk has made its copy by then


def draw_icon() -> Image.Image:
    """Return the icon: an amber ring on a dark ground."""
    side = _SIDE_PX * _OVERSAMPLING
    image = Image.new("RGBA", (side, side))
    draw = ImageDraw.Draw(image)
    draw.rounded_rectangle((0, 0, side - 1, side - 1), side // 5, fill=COLOURS["sidebar"][1])
    margin, width = side // 5, side // 9
    draw.ellipse((margin, margin, side - margin, side - margin), outline=COLOURS["accent"][1], width=width)
    centre, radius = side // 2, side // 10
    draw.ellipse((centre - radius, centre - radius, centre + radius, centre + radius), fill=COLOURS["accent_hover"][1])
    return image.resize((_SIDE_PX, _SIDE_PX), Image.Resampling.LANCZOS)
