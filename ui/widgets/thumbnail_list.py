"""A list of images, one per row: a thumbnail, a name, a line of text and marks. Only visible rows are drawn."""

from __future__ import annotations

import tkinter as tk
import tkinter.font as tkfont
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ui.loop.pump import Pump
from ui.widgets.image_canvas import ImageCanvas
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


class ThumbnailList(ImageCanvas):
    """Call `show` with images; `line_of(index)` returns a row when it is drawn, `on_choose(index)` a click.

    Up, Down, Page Up, Page Down, Home and End choose, too.
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
        super().__init__(master, theme, pump, on="card", most_photos=_MAX_KEPT, takes_focus=True)
        self.images: Sequence[Path] = ()
        self.chosen = -1
        self.empty_text = empty_text
        self._line_of, self._on_choose = line_of, on_choose
        self.canvas.bind("<Button-1>", self._clicked)
        for sequence, by in (("<Home>", -(10**9)), ("<End>", 10**9)):
            self.canvas.bind(sequence, lambda _e, by=by: self._step(by))  # type: ignore[misc]

    def show(self, images: Sequence[Path], chosen: int) -> None:
        """Show other images; thumbnails that are loaded stay."""
        self.images = images
        self._photos.keep_only(set(images))
        self.choose(chosen)

    def choose(self, index: int) -> None:
        """Mark a row and scroll to it."""
        self.chosen = index
        if index >= 0:
            row_px, height = self._row_px(), self.canvas.winfo_height()
            self._top = max(min(self._top, index * row_px), (index + 1) * row_px - max(height, row_px))
        self.draw_soon()

    def _row_px(self) -> int:
        return self.theme.px(_ROW_PX)

    def content_height(self) -> int:
        """Return the height of all rows in pixels."""
        return len(self.images) * self._row_px()

    def draw(self) -> None:
        """Draw the rows in sight."""
        canvas, row_px = self.canvas, self._row_px()
        canvas.delete("all")
        width, height = canvas.winfo_width(), canvas.winfo_height()
        if width <= 1:
            return
        self._keep_inside()
        if not self.images:
            self._write_in_the_middle(self.empty_text)
        for index in range(self._top // row_px, min(len(self.images), (self._top + height) // row_px + 1)):
            self._draw_row(index, index * row_px - self._top, width)

    def _draw_row(self, index: int, y: int, width: int) -> None:
        canvas, theme, row_px = self.canvas, self.theme, self._row_px()
        side, gap = theme.px(_IMAGE_PX), theme.px(_GAP_PX)
        if index == self.chosen:
            canvas.create_rectangle(0, y, width, y + row_px, fill=theme.colour("selection"), width=0)
        line, key = self._line_of(index), (self.images[index], side)
        photo = self._photos.get(key)
        if photo is not None:
            canvas.create_image(gap + side / 2, y + row_px / 2, image=photo)
        else:
            canvas.create_rectangle(gap, y + gap, gap + side, y + gap + side, fill=theme.colour("field"), width=0)
            self._photos.load(key)
        left = 2 * gap + side
        for text, token, font, at in (
            (line.name, "text", "small", 0.32),
            (line.text, line.token, "caption", 0.68),
        ):
            shape = tkfont.Font(canvas, font=theme.font(font))
            taken = shape.measure(f"  {line.mark}") if line.mark and at < 0.5 else 0
            canvas.create_text(
                left, y + row_px * at, text=_cut(text, shape, width - left - gap - taken), anchor="w",
                fill=theme.colour(token), font=theme.font(font),
            )  # fmt: skip
        if line.mark:
            canvas.create_text(
                width - gap, y + row_px * 0.32, text=line.mark, anchor="e",
                fill=theme.colour("accent"), font=theme.font("caption"),
            )  # fmt: skip

    def _step(self, by: int) -> str:
        if self.images:
            self._on_choose(min(len(self.images) - 1, max(0, self.chosen + by)))
        return "break"

    def _clicked(self, event: tk.Event[Any]) -> None:
        self.canvas.focus_set()
        index = (event.y + self._top) // self._row_px()
        if 0 <= index < len(self.images):
            self._on_choose(index)


def _cut(text: str, font: tkfont.Font, room: int) -> str:
    """Return a text on one line, shortened to a width."""
    plain = " ".join(text[: 2 * _MAX_CHARS].split())[:_MAX_CHARS]
    if font.measure(plain) <= room:
        return plain
    least, most = 0, len(plain)
    while least < most:
        middle = (least + most + 1) // 2
        if font.measure(f"{plain[:middle]}…") <= room:
            least = middle
        else:
            most = middle - 1
    return f"{plain[:least]}…"
