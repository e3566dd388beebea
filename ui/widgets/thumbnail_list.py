"""A list of images, one per row: a thumbnail, a name, a line of text and marks."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ui.loop.pump import Pump
from ui.widgets.canvas import CanvasBatch
from ui.widgets.fitted_text import FittedTexts
from ui.widgets.grid import Grid
from ui.widgets.grid_layout import GridLayout
from ui.widgets.photos import Key
from ui.widgets.theme import Theme

_ROW_PX, _IMAGE_PX, _GAP_PX = 58, 46, 6
_MAX_KEPT = 200
_MAX_CHARS = 120


@dataclass(frozen=True, slots=True)
class Line:
    """A row: its name, the text below, the colour token of that text, and a mark at the right."""

    name: str
    text: str = ""
    token: str = "muted"
    mark: str = ""


class ThumbnailList(Grid):
    """Call `show` with images; `line_of(index)` returns a row when it is drawn, `on_choose(index)` a click.

    Home and End choose, too; the editor's keys move up and down.
    """

    wheel_px = 2 * _ROW_PX

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        pump: Pump,
        *,
        line_of: Callable[[int], Line],
        on_choose: Callable[[int], object],
        empty_text: str = "",
    ) -> None:
        super().__init__(
            master, theme, pump, most_photos=_MAX_KEPT, takes_focus=True, empty_text=empty_text, on_click=on_choose
        )
        self.images: Sequence[Path] = ()
        self.chosen = -1
        self._texts = FittedTexts(self.canvas, theme)
        self._line_of = line_of
        for key in ("Home", "End"):
            self.canvas.bind(f"<{key}>", lambda _e, key=key: self._choose_by(key, on_choose))  # type: ignore[misc]

    def show(self, images: Sequence[Path], chosen: int) -> None:
        """Show other images; thumbnails that are loaded stay."""
        self.images = images
        self.photos.keep_only(set(images))
        self.choose(chosen)

    def choose(self, index: int) -> None:
        """Mark a row and scroll to it."""
        self.chosen = index
        if index >= 0:
            self.see(index)
        self.draw_soon()

    def layout(self) -> GridLayout:
        """Return the rows."""
        return GridLayout(len(self.images), 1, max(1, self.canvas.winfo_width()), self.theme.px(_ROW_PX))

    def photo_key(self, number: int, layout: GridLayout) -> Key:
        """Return the key of a row's thumbnail."""
        return self.images[number], self.theme.px(_IMAGE_PX)

    def draw_item(self, batch: CanvasBatch, layout: GridLayout, number: int, x: int, y: int) -> None:
        """Draw a row."""
        theme, width, row_px = self.theme, layout.cell_width, layout.cell_height
        side, gap = theme.px(_IMAGE_PX), theme.px(_GAP_PX)
        if number == self.chosen:
            batch.add("rectangle", 0, y, width, y + row_px, fill=theme.colour("selection"), width=0)
        self.draw_photo(batch, self.photo_key(number, layout), gap, y + gap, side)
        line, left = self._line_of(number), 2 * gap + side
        mark_px = self._texts.width(f"  {line.mark}", "small") if line.mark else 0
        for text, token, role, at, room in (
            (line.name, "text", "small", 0.32, width - left - gap - mark_px),
            (line.text[:_MAX_CHARS], line.token, "caption", 0.68, width - left - gap),
        ):
            batch.add(
                "text", left, y + row_px * at, text=self._texts.fitted(text, role, room), anchor="w",
                fill=theme.colour(token), font=theme.font(role),
            )  # fmt: skip
        if line.mark:
            batch.add(
                "text", width - gap, y + row_px * 0.32, text=line.mark, anchor="e",
                fill=theme.colour("accent"), font=theme.font("caption"),
            )  # fmt: skip

    def _choose_by(self, key: str, choose: Callable[[int], object]) -> str:
        if self.images:
            choose(self.layout().reached(max(0, self.chosen), key, self.canvas.winfo_height()))
        return "break"
