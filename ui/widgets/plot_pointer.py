"""The pointer on a plot: a small table next to it, with a heading and columns of names and numbers, and the zoom."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ui.widgets.fitted_text import shorten
from ui.widgets.plot_axes import Zoom
from ui.widgets.plot_model import Column
from ui.widgets.theme import Theme

if TYPE_CHECKING:
    from ui.widgets.plot import Plot

_ROW_PX = 17
_PADDING_PX = 10
_GAP_PX = 18
_FROM_POINTER_PX = 14
_MAX_NAME_CHARS = 22


def draw_readout(
    canvas: tk.Canvas, theme: Theme, at_px: tuple[float, float], heading: str, columns: Sequence[Column], *, tag: str
) -> None:
    """Draw the table next to a point, inside the canvas; rows that do not fit are counted."""
    num_rows = max(1, int(canvas.winfo_height() - at_px[1] - theme.px(2 * _PADDING_PX)) // theme.px(_ROW_PX) - 2)
    padding, row = theme.px(_PADDING_PX), theme.px(_ROW_PX)
    before = set(canvas.find_all())
    write = _Writer(canvas, theme, tag)
    write.text(padding, padding, heading, "on_tip", "nw")
    x = float(padding)
    for column in columns:
        x = write.column(x, padding + row, column, num_rows) + theme.px(_GAP_PX)
    items = [i for i in canvas.find_all() if i not in before]
    left, top, right, bottom = _around(canvas, items)
    width, height = right - left + 2 * padding, bottom - top + 2 * padding
    place_x, place_y = _place(canvas, at_px, (width, height), theme.px(_FROM_POINTER_PX))
    for item in items:
        canvas.move(item, place_x - left + padding, place_y - top + padding)
    frame = canvas.create_rectangle(
        place_x, place_y, place_x + width, place_y + height, fill=theme.colour("tip"), width=0, tags=tag
    )
    canvas.tag_lower(frame, items[0])


@dataclass(frozen=True, slots=True)
class _Writer:
    canvas: tk.Canvas
    theme: Theme
    tag: str

    def text(self, x: float, y: float, text: str, token: str, anchor: str) -> int:
        colour, font = self.theme.colour(token), self.theme.font("caption")
        return self.canvas.create_text(x, y, text=text, fill=colour, font=font, anchor=anchor, tags=self.tag)  # type: ignore[call-overload, no-any-return]

    def column(self, x: float, y: float, column: Column, num_rows: int) -> float:
        """Write a column with its top left at a point; return its right edge."""
        rows = [(shorten(name, _MAX_NAME_CHARS), value) for name, value in column.rows]
        if len(rows) > num_rows:
            rows = [*rows[: num_rows - 1], (f"and {len(rows) - num_rows + 1} more", "")]
        step = self.theme.px(_ROW_PX)
        names = [self.text(x, y, column.title, "faint", "nw")]
        names += [self.text(x, y + (i + 1) * step, name, "on_tip", "nw") for i, (name, _) in enumerate(rows)]
        middle = max(self.canvas.bbox(i)[2] for i in names) + self.theme.px(_PADDING_PX)
        numbers = [self.text(middle, y + (i + 1) * step, value, "on_tip", "nw") for i, (_, value) in enumerate(rows)]
        with_value = [i for i, (_, value) in zip(numbers, rows, strict=True) if value]
        right = max((self.canvas.bbox(i)[2] for i in with_value), default=middle)
        for item in numbers:  # right-aligned
            self.canvas.coords(item, right, self.canvas.coords(item)[1])
            self.canvas.itemconfigure(item, anchor="ne")
        return float(right)


def _around(canvas: tk.Canvas, items: Sequence[int]) -> tuple[float, float, float, float]:
    boxes = [box for box in map(canvas.bbox, items) if box]
    lows, highs = [b[:2] for b in boxes], [b[2:] for b in boxes]
    return min(x for x, _ in lows), min(y for _, y in lows), max(x for x, _ in highs), max(y for _, y in highs)


def _place(
    canvas: tk.Canvas, at_px: tuple[float, float], size_px: tuple[float, float], gap_px: float
) -> tuple[float, float]:
    """Return the top left corner: right of the point, or left of it if there is no room."""
    x = at_px[0] + gap_px
    if x + size_px[0] > canvas.winfo_width():
        x = at_px[0] - gap_px - size_px[0]
    y = min(at_px[1], canvas.winfo_height() - size_px[1])
    return max(0.0, x), max(0.0, y)


_DRAG_PX = 5
_ZOOM = 0.8


class MouseZoom:
    """The wheel zooms at the pointer, a drag to the range that it covers, a drag with Shift moves, and a double click
    shows everything.
    """

    def __init__(self, plot: Plot) -> None:
        self._plot = plot
        self._grabbed: tuple[int, Zoom] | None = None
        plot.bind("<Button-1>", self._grab)
        plot.bind("<B1-Motion>", self._drag)
        plot.bind("<ButtonRelease-1>", self._release)
        plot.bind("<Double-Button-1>", lambda _e: plot.set_zoom(Zoom()))
        for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
            plot.bind(sequence, self._wheel)

    @property
    def is_dragging(self) -> bool:
        """Whether the button is held down on the plot."""
        return self._grabbed is not None

    def _wheel(self, event: tk.Event[Any]) -> str:
        plot = self._plot
        if plot.panes:
            is_in = event.num == 4 or event.delta > 0
            plot.set_zoom(plot.zoom.at(plot.step_at(event.x), _ZOOM if is_in else 1 / _ZOOM, plot.extent))
        return "break"

    def _grab(self, event: tk.Event[Any]) -> None:
        self._grabbed = (event.x, self._plot.zoom) if self._plot.panes else None

    def _drag(self, event: tk.Event[Any]) -> None:
        if self._grabbed is None:
            return
        (start, zoom), plot = self._grabbed, self._plot
        plot.delete("pointer")
        if _is_shifted(event):
            plot.set_zoom(zoom.move(plot.step_at(start) - plot.step_at(event.x), plot.extent))
        else:
            top, bottom = plot.panes[0].top, plot.panes[-1].bottom
            plot.create_rectangle(
                start, top, event.x, bottom, outline=plot.theme.colour("accent"), stipple="gray12",
                fill=plot.theme.colour("accent"), tags="pointer",
            )  # fmt: skip

    def _release(self, event: tk.Event[Any]) -> None:
        if self._grabbed is None:
            return
        (start, _), plot = self._grabbed, self._plot
        self._grabbed = None
        plot.delete("pointer")
        if abs(event.x - start) > plot.theme.px(_DRAG_PX) and not _is_shifted(event):
            plot.set_zoom(plot.zoom.to(plot.step_at(start), plot.step_at(event.x), plot.extent))


def _is_shifted(event: tk.Event[Any]) -> bool:
    return isinstance(event.state, int) and bool(event.state & 1)
