"""Two or more images side by side, as large as fits, to choose among by a click."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ui.loop.pump import Pump
from ui.widgets.photos import Photos
from ui.widgets.theme import Theme

_GAP_PX, _LABEL_PX, _RING_PX = 16, 26, 4
_SIDE_STEP_PX = 8  # so that resizing the window reloads little
_MAX_KEPT = 32  # several times the images of two requests: resizing loads others


@dataclass(frozen=True, slots=True)
class Place:
    """Where an image is: the left and top of its square, and the side."""

    left: float
    top: float
    side: int

    def has(self, x: float, y: float) -> bool:
        """Return whether a point is on the image."""
        return self.left <= x < self.left + self.side and self.top <= y < self.top + self.side


def places(number: int, width: int, height: int, gap: int, label: int) -> list[Place]:
    """Return squares for some images with labels below, in the rows and columns that make them largest."""

    def side_in(columns: int) -> int:
        rows = -(-number // columns)
        return min((width - gap * (columns - 1)) // columns, (height - gap * (rows - 1)) // rows - label)

    columns = max(range(number, 0, -1), key=side_in)
    side, rows = max(1, side_in(columns)), -(-number // columns)
    left = (width - columns * side - gap * (columns - 1)) / 2
    top = max(0.0, (height - rows * (side + label) - gap * (rows - 1)) / 2)
    return [
        Place(left + (n % columns) * (side + gap), top + (n // columns) * (side + label + gap), side)
        for n in range(number)
    ]


class ChoiceBoard(tk.Canvas):
    """Call `show` with images; a click on one calls `on_pick(number)`."""

    def __init__(self, master: tk.Misc, theme: Theme, pump: Pump, on_pick: Callable[[int], object]) -> None:
        super().__init__(master, highlightthickness=0, borderwidth=0, width=theme.px(300), height=theme.px(200))
        self.theme = theme
        self.images: tuple[Path, ...] = ()
        self.marked: int | None = None
        self._labels: Sequence[str] = ()
        self._ahead: tuple[Path, ...] = ()
        self._pump = pump
        self._on_pick = on_pick
        self._hovered: int | None = None
        self._photos = Photos(self, pump, lambda: pump.redraw_soon(self, self.draw), most=_MAX_KEPT)
        self.bind("<Configure>", lambda _e: pump.redraw_soon(self, self.draw))
        self.bind("<Button-1>", self._on_click)
        self.bind("<Motion>", self._on_move)
        self.bind("<Leave>", lambda _e: self._hover(None))
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        self.configure(background=self.theme.colour("window"))
        self.draw()

    @property
    def is_loaded(self) -> bool:
        """Whether all images are on the screen, or known to be unreadable."""
        return bool(self.images) and all((path, self._side()) in self._photos for path in self.images)

    def show(
        self, images: Sequence[Path], labels: Sequence[str], *, marked: int | None = None, ahead: Sequence[Path] = ()
    ) -> None:
        """Show images with the labels below them; one may be marked, and others are loaded ahead."""
        self.images, self._labels, self.marked, self._ahead = tuple(images), tuple(labels), marked, tuple(ahead)
        self._photos.keep_only({*self.images, *self._ahead})
        self.draw()

    def destroy(self) -> None:
        """Also cancel the images that are still being loaded."""
        self._photos.close()
        self._pump.forget(self)
        super().destroy()

    def draw(self) -> None:
        """Redraw everything."""
        self.delete("all")
        if self.winfo_width() <= 1 or not self.images:
            return
        for number, place in enumerate(self.places()):
            self._draw_image(number, place)
        for path in self._ahead:
            self._photos.load((path, self._side()))

    def places(self) -> list[Place]:
        """Return where the images are."""
        gap, label, ring = self.theme.px(_GAP_PX), self.theme.px(_LABEL_PX), self.theme.px(_RING_PX)
        found = places(len(self.images), self.winfo_width() - 2 * ring, self.winfo_height() - 2 * ring, gap, label)
        return [Place(place.left + ring, place.top + ring, place.side) for place in found]

    def _side(self) -> int:
        """Return the side that images are loaded at: a little smaller than their place."""
        side = self.places()[0].side
        return max(_SIDE_STEP_PX, side // _SIDE_STEP_PX * _SIDE_STEP_PX)

    def _draw_image(self, number: int, place: Place) -> None:
        key = (self.images[number], self._side())
        middle_x, middle_y = place.left + place.side / 2, place.top + place.side / 2
        box, width, height = (place.left, place.top, place.left + place.side, place.top + place.side), 0, 0
        photo = self._photos.get(key)
        if photo is not None:
            width, height = photo.width(), photo.height()
            box = (middle_x - width / 2, middle_y - height / 2, middle_x + width / 2, middle_y + height / 2)
            self.create_image(middle_x, middle_y, image=photo, tags="image")
        else:
            self.create_rectangle(*box, fill=self.theme.colour("card"), width=0)
            if key in self._photos:
                self._write(middle_x, middle_y, "This image cannot be shown.", "muted", anchor="center")
            self._photos.load(key)
        token = "good" if number == self.marked else "accent" if number == self._hovered else ""
        if token:
            inset = self.theme.px(_RING_PX) / 2
            self.create_rectangle(
                box[0] - inset, box[1] - inset, box[2] + inset, box[3] + inset,
                outline=self.theme.colour(token), width=self.theme.px(_RING_PX), tags="ring",
            )  # fmt: skip
        label = self._labels[number] if number < len(self._labels) else ""
        below = box[3] + self.theme.px(8)
        self._write(middle_x, below, label, "good" if number == self.marked else "label", anchor="n")

    def _write(self, x: float, y: float, text: str, token: str, *, anchor: Any) -> None:
        self.create_text(
            x, y, text=text, fill=self.theme.colour(token), font=self.theme.font("body"), anchor=anchor, tags="label"
        )

    def _number_at(self, event: tk.Event[Any]) -> int | None:
        if not self.images:
            return None
        return next((n for n, place in enumerate(self.places()) if place.has(event.x, event.y)), None)

    def _on_click(self, event: tk.Event[Any]) -> None:
        number = self._number_at(event)
        if number is not None:
            self._on_pick(number)

    def _on_move(self, event: tk.Event[Any]) -> None:
        self._hover(self._number_at(event))

    def _hover(self, number: int | None) -> None:
        if number != self._hovered:
            self._hovered = number
            self.configure(cursor="hand2" if number is not None else "")
            self.draw()
