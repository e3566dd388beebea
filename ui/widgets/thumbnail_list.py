"""A list of images, one per row: a thumbnail, a name, a line of text and marks. Only visible rows are drawn."""

from __future__ import annotations

import tkinter as tk
import tkinter.font as tkfont
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ui.run.pump import Pump
from ui.theme import Theme
from ui.widgets.auto_bar import AutoBar
from ui.widgets.panel import Panel
from ui.widgets.photos import Photos

_ROW_PX, _IMAGE_PX, _GAP_PX = 58, 46, 6
_WHEEL_ROWS = 2
_MAX_KEPT = 200
_MAX_CHARS = 120


@dataclass(frozen=True, slots=True)
class Line:
    """A row: its name, the text below, the colour token of that text, and a mark at the right."""

    name: str
    text: str = ""
    token: str = "muted"
    mark: str = ""


class ThumbnailList(Panel):
    """Call `show` with images; `line_of(index)` returns a row when it is drawn, `on_choose(index)` a click.

    Up, Down, Page Up, Page Down, Home and End choose, too.
    """

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
        super().__init__(master, theme, "card")
        self.images: Sequence[Path] = ()
        self.chosen = -1
        self.empty_text = empty_text
        self.canvas = tk.Canvas(self, highlightthickness=0, borderwidth=0, width=theme.px(180), height=theme.px(100))
        self.canvas.configure(takefocus=True)
        self._pump, self._line_of, self._on_choose = pump, line_of, on_choose
        self._top = 0
        self._photos = Photos(self.canvas, pump, self.redraw, most=_MAX_KEPT)
        self._bar = AutoBar(self, theme, self._scroll_by_bar, on="card")
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        self.canvas.grid(row=0, column=0, sticky="nsew")
        self._bar.grid(row=0, column=1, sticky="ns")
        self.canvas.bind("<Configure>", lambda _e: self.redraw())
        self.canvas.bind("<Button-1>", self._clicked)
        for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
            self.canvas.bind(sequence, self._wheel)
        for sequence, by in (("<Home>", -(10**9)), ("<End>", 10**9)):
            self.canvas.bind(sequence, lambda _e, by=by: self._step(by))  # type: ignore[misc]
        self.canvas.bind("<FocusIn>", lambda _e: self.redraw())
        self.canvas.bind("<FocusOut>", lambda _e: self.redraw())
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        super().apply_theme()
        if hasattr(self, "canvas"):
            self.canvas.configure(background=self.theme.colour("card"))
            self.redraw()

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
        self.redraw()

    def redraw(self) -> None:
        """Draw again on a coming turn."""
        self._pump.redraw_soon(self, self._draw)

    def destroy(self) -> None:
        """Also cancel the thumbnails that are being loaded."""
        self._pump.forget(self)
        self._photos.close()
        super().destroy()

    def _row_px(self) -> int:
        return self.theme.px(_ROW_PX)

    def _draw(self) -> None:
        canvas, row_px = self.canvas, self._row_px()
        canvas.delete("all")
        width, height = canvas.winfo_width(), canvas.winfo_height()
        if width <= 1:
            return
        whole = len(self.images) * row_px
        self._top = max(0, min(self._top, whole - height))
        self._bar.set(self._top / max(1, whole), min(1.0, (self._top + height) / max(1, whole)))
        if not self.images:
            canvas.create_text(
                width / 2, height / 3, text=self.empty_text, width=max(60, width - 24), justify="center",
                fill=self.theme.colour("faint"), font=self.theme.font("small"),
            )  # fmt: skip
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

    def _scroll_by_bar(self, kind: str, amount: Any, _unit: str = "") -> None:
        whole = len(self.images) * self._row_px()
        self._top = int(float(amount) * whole) if kind == "moveto" else self._top + int(amount) * self._row_px()
        self.redraw()

    def _wheel(self, event: tk.Event[Any]) -> str:
        is_up = event.num == 4 or event.delta > 0
        self._top += (-1 if is_up else 1) * _WHEEL_ROWS * self._row_px()
        self.redraw()
        return "break"

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
