"""The places at the side of the file dialog: a button for each folder to go to."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from ui.widgets.controls import Button
from ui.widgets.files.places import Place
from ui.widgets.panel import Text
from ui.widgets.scroll import ScrollFrame
from ui.widgets.theme import PAD, Theme

_WIDTH_PX = 168
_MAX_CHARS = 20


class PlacesList(ScrollFrame):
    """`go(folder)` is called with the place that is pressed."""

    def __init__(self, master: tk.Misc, theme: Theme, places: Iterable[Place], go: Callable[[Path], object]) -> None:
        super().__init__(master, theme, "window")
        px = theme.px
        self.buttons: dict[Path, Button] = {}
        self.configure(width=px(_WIDTH_PX))
        self.canvas.configure(width=px(_WIDTH_PX - PAD))
        heading = ""
        for place in places:
            if place.heading != heading:
                heading = place.heading
                Text(self.body, theme, heading, colour="muted", role="caption").pack(
                    anchor="w", padx=px(6), pady=(px(8) if self.buttons else 0, px(2))
                )
            button = Button(
                self.body, theme, _short(place.label), partial(go, place.folder),
                style="ghost", width=_WIDTH_PX - PAD - 4, height=26, anchor="w",
            )  # fmt: skip
            button.pack(anchor="w")
            self.buttons[place.folder] = button


def _short(label: str) -> str:
    return label if len(label) <= _MAX_CHARS else f"{label[: _MAX_CHARS - 1]}…"
