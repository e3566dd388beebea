"""Two or more images side by side, as large as fits, to choose among by a click."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ui.loop.pump import Pump
from ui.widgets.canvas import CanvasBatch
from ui.widgets.grid import Grid
from ui.widgets.grid_layout import GridLayout, largest_squares
from ui.widgets.photos import Key
from ui.widgets.theme import Theme

_GAP_PX, _LABEL_PX, _RING_PX = 16, 26, 4
_SIDE_STEP_PX = 8  # so that resizing the window reloads little
_MAX_KEPT = 32  # several times the images of two requests: resizing loads others


class ChoiceBoard(Grid):
    """Call `show` with images; a click on one calls `on_pick(number)`."""

    def __init__(self, master: tk.Misc, theme: Theme, pump: Pump, on_pick: Callable[[int], object]) -> None:
        super().__init__(master, theme, pump, on="window", most_photos=_MAX_KEPT, has_bar=False, on_click=on_pick)
        self.canvas.configure(width=theme.px(300), height=theme.px(200))
        self.images: tuple[Path, ...] = ()
        self.marked: int | None = None
        self._labels: Sequence[str] = ()
        self._ahead: tuple[Path, ...] = ()

    @property
    def is_loaded(self) -> bool:
        """Whether all images are on the screen, or known to be unreadable."""
        layout = self.layout()
        return bool(self.images) and all(self.photo_key(n, layout) in self.photos for n in range(len(self.images)))

    def show(
        self, images: Sequence[Path], labels: Sequence[str], *, marked: int | None = None, ahead: Sequence[Path] = ()
    ) -> None:
        """Show images with the labels below them; one may be marked, and others are loaded ahead."""
        self.images, self._labels, self.marked, self._ahead = tuple(images), tuple(labels), marked, tuple(ahead)
        self.photos.keep_only({*self.images, *self._ahead})
        self.draw()

    def layout(self) -> GridLayout:
        """Return where the images are."""
        gap, label, ring = self.theme.px(_GAP_PX), self.theme.px(_LABEL_PX), self.theme.px(_RING_PX)
        width, height = self.canvas.winfo_width() - 2 * ring, self.canvas.winfo_height() - 2 * ring
        layout = largest_squares(len(self.images), width, height, gap, label)
        return replace(layout, left=layout.left + ring, top=layout.top + ring)

    def photo_key(self, number: int, layout: GridLayout) -> Key:
        """Return the key of an image, which is loaded a little smaller than its place."""
        return self.images[number], self._side(layout)

    def _side(self, layout: GridLayout) -> int:
        return max(_SIDE_STEP_PX, layout.cell_width // _SIDE_STEP_PX * _SIDE_STEP_PX)

    def draw_item(self, batch: CanvasBatch, layout: GridLayout, number: int, x: int, y: int) -> None:
        """Draw an image, its frame and its label."""
        side, key = layout.cell_width, self.photo_key(number, layout)
        middle_x, middle_y = x + side / 2, y + side / 2
        photo = self.photo(key)
        width, height = (photo.width(), photo.height()) if photo is not None else (side, side)
        box = (middle_x - width / 2, middle_y - height / 2, middle_x + width / 2, middle_y + height / 2)
        if photo is not None:
            batch.add("image", middle_x, middle_y, image=photo, tags="image")
        else:
            batch.add("rectangle", *box, fill=self.theme.colour("card"), width=0)
            if key in self.photos:
                self._write(batch, middle_x, middle_y, "This image cannot be shown.", "muted", anchor="center")
        token = "good" if number == self.marked else "accent" if number == self.hovered else ""
        if token:
            inset = self.theme.px(_RING_PX) / 2
            batch.add(
                "rectangle", box[0] - inset, box[1] - inset, box[2] + inset, box[3] + inset,
                outline=self.theme.colour(token), width=self.theme.px(_RING_PX), tags="ring",
            )  # fmt: skip
        label = self._labels[number] if number < len(self._labels) else ""
        below = box[3] + self.theme.px(8)
        self._write(batch, middle_x, below, label, "good" if number == self.marked else "label", anchor="n")

    def keys_ahead(self, layout: GridLayout) -> list[Key]:
        """Return the images of the next request."""
        return [(path, self._side(layout)) for path in self._ahead] if self.images else []

    def pointed_at(self, event: tk.Event[Any]) -> None:
        """Frame the image under the pointer."""
        self.canvas.configure(cursor="hand2" if self.hovered is not None else "")
        self.draw_soon()

    def _write(self, batch: CanvasBatch, x: float, y: float, text: str, token: str, *, anchor: str) -> None:
        batch.add(
            "text", x, y, text=text, fill=self.theme.colour(token), font=self.theme.font("body"), anchor=anchor,
            tags="label",
        )  # fmt: skip
