"""The plot on a canvas: lines in panes, bars or points, with axes, a legend, values under the pointer and zoom."""

from __future__ import annotations

import math
import tkinter as tk
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ui.widgets.canvas import CanvasBatch, DrawnCanvas
from ui.widgets.plot_axes import Axis, Zoom, tick_label
from ui.widgets.plot_model import STYLES, Figure, Line, Pane, Point, clip_ends, extent_of, in_rows, panes_of
from ui.widgets.plot_pointer import MouseZoom, draw_readout
from ui.widgets.theme import Theme

_BETWEEN_PX = 14  # panes
_LEGEND_ROW_PX, _BELOW_LEGEND_PX = 16, 16
_TICK_SPACING_PX = 70
_LABEL_HEIGHT_PX = 14
_LABELS_APART_PX = 36  # of a histogram
_ROW_PX, _ROW_LABEL_PX, _ROW_VALUE_PX = 18, 84, 52
_SMALLEST_PX, _LARGEST_PX = 3, 11  # of a point, across
_NEAR_PX = 8
_DASHES = (4, 3)


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of the legend; without a line it is the ring."""

    x: int
    y: int
    text: str
    line: Line | None


class Plot(DrawnCanvas):
    """Call `show` with a figure; it is drawn again when the size changes.

    A plot that `zooms` does so with the mouse (`MouseZoom`). `on_zoom` is called after a change of the zoom.
    """

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        *,
        on: str = "card",
        size_px: tuple[int, int] = (300, 180),
        zooms: bool = False,
        on_zoom: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(master, theme, on=on, size_px=size_px)
        self.figure = Figure()
        self.zoom = Zoom()
        self.is_log = False
        self.panes: tuple[Pane, ...] = ()
        self._on_zoom = on_zoom
        self._legend: tuple[_Entry, ...] = ()
        self._x_axis = Axis(0.0, 1.0)
        self._places: list[tuple[float, float, Point]] = []  # of the points
        self._batch = CanvasBatch(self)
        self.bind("<Motion>", self._point_at)
        self.bind("<Leave>", self._leave)
        self._mouse = MouseZoom(self) if zooms else None
        self.apply_theme()

    def show(self, figure: Figure) -> None:
        """Draw another figure."""
        self.figure = figure
        self.draw()

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines of the figure."""
        return self.figure.lines

    @property
    def extent(self) -> tuple[float, float]:
        """The first and the last step of all lines."""
        return extent_of(self.lines)

    def set_log(self, *, is_log: bool) -> None:
        """Draw with logarithmic or linear axes."""
        self.is_log = is_log
        self.draw()

    def set_zoom(self, zoom: Zoom) -> None:
        """Show a range of steps."""
        if zoom != self.zoom:
            self.zoom = zoom
            self.draw()
            self._on_zoom()

    def draw(self) -> None:
        """Redraw everything: a few milliseconds, however many points there are."""
        figure, self.panes, self._places = self.figure, (), []
        if figure.is_empty:
            middle_x, middle_y = self.winfo_width() / 2, self.winfo_height() / 2
            self._write(middle_x, middle_y, figure.empty_text, "faint", anchor="center")
        elif self.winfo_width() > 1:
            if figure.has_rows:
                self._draw_rows()
            elif figure.points:
                self._draw_points()
            else:
                self._draw_panes()
                self.draw_above()
        self._batch.draw()

    def draw_above(self) -> None:
        """Add what a subclass draws above the panes."""

    def x(self, step: float) -> float:
        """Return the place of a step on the canvas; steps outside of the range are put on its edge."""
        left, right = self._sides()
        return left + self._x_axis.share(step) * (right - left)

    def y(self, value: float, pane: int = 0) -> float:
        """Return the place of a value in a pane."""
        return self.panes[pane].y(value)

    def step_at(self, x: float) -> float:
        """Return the step at a place on the canvas."""
        left, right = self._sides()
        return self._x_axis.value((x - left) / max(1, right - left))

    # -- panes

    def _sides(self) -> tuple[int, int]:
        px, frame = self.theme.px, self.figure.frame
        return px(frame.left_px), max(px(frame.left_px) + 1, self.winfo_width() - px(frame.right_px))

    def _draw_panes(self) -> None:
        figure, px = self.figure, self.theme.px
        self._x_axis = figure.x or Axis(*self.zoom.over(self.extent))
        self._legend = self._legend_entries() if figure.frame.top_px is None else ()
        top = self._legend[-1].y + px(_BELOW_LEGEND_PX) if self._legend else px(figure.frame.top_px or 0)
        self.panes = panes_of(
            figure,
            (self._x_axis.low, self._x_axis.high),
            is_log=self.is_log,
            top=top,
            bottom=self.winfo_height() - px(figure.frame.bottom_px),
            between=px(_BETWEEN_PX),
        )
        self._draw_titles()
        self._draw_x_labels()
        for pane in self.panes:
            if figure.frame.has_y_labels:
                self._draw_scales(pane)
            self._draw_columns(pane)
            for line in pane.lines:
                self._draw_line(pane, line)
        self._draw_marks(self.panes[0])
        for entry in self._legend:
            self._draw_entry(entry)

    def _draw_titles(self) -> None:
        figure, px, (left, right) = self.figure, self.theme.px, self._sides()
        if figure.title:
            self._write(left, px(2), figure.title, "text", anchor="nw", role="strong")
            self._write(left, px(22), figure.y_label, "muted", anchor="nw")
            self._write((left + right) / 2, self.winfo_height() - px(2), figure.x_label, "muted", anchor="s")

    def _draw_x_labels(self) -> None:
        figure, px, (left, right) = self.figure, self.theme.px, self._sides()
        top, bottom = self.panes[0].top, self.panes[-1].bottom
        if figure.frame.x_labels == "ends":
            for x, text, anchor in zip((left, right), figure.ends, ("sw", "se"), strict=True):
                self._write(x, self.winfo_height(), text, "muted", anchor=anchor)
        if figure.frame.x_labels not in ("steps", "values"):
            return
        most, has_lines = max(2, (right - left) // px(_TICK_SPACING_PX)), figure.frame.x_labels == "values"
        for value in figure.x_ticks if 0 < len(figure.x_ticks) <= most else self._x_axis.ticks(most):
            if has_lines:
                self._batch.add("line", self.x(value), top, self.x(value), bottom, fill=self.theme.colour("chart_grid"))
            if has_lines or value == int(value):
                self._write(self.x(value), bottom + px(6), tick_label(value), "muted", anchor="n")

    def _draw_scales(self, pane: Pane) -> None:
        px, (left, right) = self.theme.px, self._sides()
        max_count = max(2, (pane.bottom - pane.top) // px(_TICK_SPACING_PX // 2))
        for axis, x, anchor in ((pane.axis, left - px(8), "e"), (pane.right_axis, right + px(8), "w")):
            last = math.inf
            for value in axis.ticks(max_count) if axis else ():
                y = pane.y(value, on_right=axis is not pane.axis)
                if axis is pane.axis:
                    self._batch.add("line", left, y, right, y, fill=self.theme.colour("chart_grid"))
                if last - y >= px(_LABEL_HEIGHT_PX):  # else it would overlap the one below it in a low pane
                    self._write(x, y, tick_label(value), "muted", anchor=anchor)
                    last = y

    def _draw_line(self, pane: Pane, line: Line) -> None:
        (left, right), colour, style = self._sides(), self.theme.colour(line.token), STYLES[line.style]
        axis, width = self._x_axis, self.theme.px(style.width_px)
        # A thick line shows no more than its width.
        points = line.series.points_to_draw(axis.low, axis.high, (right - left) // max(1, width))
        if len(points) > 1 and width:
            share, span = axis.share, right - left
            coordinates = [
                c
                for s, v in clip_ends(points, axis.low, axis.high)
                for c in (left + share(s) * span, pane.y(v, on_right=line.on_right))
            ]
            # Without a join: a mitred one of a steep line would stand out, a round one takes the screen long to draw.
            self._batch.add(
                "line", *coordinates, fill=colour, width=width, dash=_DASHES if style.is_dashed else (),
                joinstyle="bevel", tags=("course", line.curve),
            )  # fmt: skip
        if style.dot_px or len(points) == 1:
            radius = self.theme.px(style.dot_px or 3)
            for step, value in points:
                if axis.low <= step <= axis.high:
                    self._draw_dot(self.x(step), pane.y(value, on_right=line.on_right), radius, colour)

    def _draw_columns(self, pane: Pane) -> None:
        """Draw bars as columns, with the labels for which there is room, and the line to compare with."""
        (left, right), bars, px = self._sides(), self.figure.bars, self.theme.px
        step = (right - left) / max(1, len(bars))
        every = max(1, round(px(_LABELS_APART_PX) / step))
        for number, bar in enumerate(bars):
            x = left + number * step
            self._batch.add(
                "rectangle", x, pane.y(bar.value), x + step - px(1), pane.bottom, fill=self._bar_colour(bar.is_marked),
                width=0, tags="bar",
            )  # fmt: skip
            if bar.label and number % every == 0:
                self._write(x, pane.bottom + px(3), bar.label, "muted", anchor="nw")
        if self.figure.frame.x_labels == "ends":  # after the bars: it covers bars of height 0
            self._batch.add("line", left, pane.bottom, right, pane.bottom, fill=self.theme.colour("line"))
        if self.figure.reference is not None:
            y = pane.y(self.figure.reference)
            self._batch.add("line", left, y, right, y, fill=self.theme.colour("muted"), dash=_DASHES)

    def _draw_marks(self, pane: Pane) -> None:
        ring, mark, px, (left, right) = self.figure.ring, self.figure.mark, self.theme.px, self._sides()
        if ring is not None and self._x_axis.low <= ring.x <= self._x_axis.high:
            self._draw_ring(self.x(ring.x), pane.y(ring.y))
        if mark is not None:
            x = self.x(mark.x)
            self._batch.add("line", x, pane.top, x, pane.bottom, fill=self.theme.colour("good"), width=px(2))
            is_right = x > (left + right) / 2
            self._write(x + px(-8 if is_right else 8), pane.top, mark.words, "good", anchor="ne" if is_right else "nw")

    # -- legend

    def _legend_entries(self) -> tuple[_Entry, ...]:
        """Return the entries of the legend, in as many rows as they need."""
        px, (left, right), ring = self.theme.px, self._sides(), self.figure.ring
        texts: list[tuple[str, Line | None]] = [(line.label, line) for line in self.lines]
        texts += [(ring.label, None)] if ring is not None else []
        font = self.theme.font("caption")
        widths = [px(20 + 16) + int(self.tk.call("font", "measure", font, text)) for text, _ in texts]
        places = in_rows(widths, left, right + px(16))
        return tuple(
            _Entry(x, px(12) + row * px(_LEGEND_ROW_PX), *entry) for (x, row), entry in zip(places, texts, strict=True)
        )

    def _draw_entry(self, entry: _Entry) -> None:
        px, x, y = self.theme.px, entry.x, entry.y
        if entry.line is None:
            self._draw_ring(x + px(6), y)
        else:
            colour, style = self.theme.colour(entry.line.token), STYLES[entry.line.style]
            dash = _DASHES if style.is_dashed else ()
            self._batch.add("line", x, y, x + px(14), y, fill=colour, width=px(2), dash=dash)
            if style.dot_px:
                self._draw_dot(x + px(7), y, px(style.dot_px), colour)
        self._write(x + px(20), y, entry.text, "muted", anchor="w")

    # -- rows and points

    def _draw_rows(self) -> None:
        """Draw bars in rows with their labels; the bars that do not fit are counted in the last row."""
        px, bars, width = self.theme.px, self.figure.bars, self.winfo_width()
        row, left = px(_ROW_PX), px(_ROW_LABEL_PX)
        num_fitting = max(1, self.winfo_height() // row)
        shown = bars if len(bars) <= num_fitting else bars[: max(1, num_fitting - 1)]
        unit = max(1, width - left - px(_ROW_VALUE_PX)) / (max(bar.value for bar in bars) or 1)
        for number, bar in enumerate(shown):
            y = number * row + row / 2
            right = left + max(1, bar.value * unit)
            self._write(left - px(8), y, bar.label, "muted", anchor="e")
            self._batch.add(
                "rectangle", left, y - px(5), right, y + px(5), fill=self._bar_colour(bar.is_marked), width=0,
                tags="bar",
            )  # fmt: skip
            self._write(right + px(6), y, bar.words, "text", anchor="w")
        if len(shown) < len(bars):
            more = f"and {len(bars) - len(shown):,} more"
            self._write(left, len(shown) * row + row / 2, more, "faint", anchor="w")

    def _draw_points(self) -> None:
        """Draw points; both axes begin at 0 and have the same scale, and on the dashed line they are equal."""
        px, colour, points, frame = self.theme.px, self.theme.colour, self.figure.points, self.figure.frame
        (left, right), top = self._sides(), px(frame.top_px or 0)
        bottom = self.winfo_height() - px(frame.bottom_px)
        widest, highest = max(p.x for p in points), max(p.y for p in points)
        scale = min((right - left) / widest, (bottom - top) / highest)
        most, equal = max(p.number for p in points), min(right - left, bottom - top)
        self._batch.add("line", left, top, left, bottom, right, bottom, fill=colour("line"))
        self._batch.add("line", left, bottom, left + equal, bottom - equal, fill=colour("chart_grid"), dash=(4, 4))
        self._write(left, bottom + px(3), "0", "muted", anchor="nw")
        x_end = f"{widest:g} {self.figure.x_label}"
        self._write(left + widest * scale, bottom + px(3), x_end, "muted", anchor="ne")
        self._write(left - px(4), bottom - highest * scale, f"{highest:g}", "muted", anchor="e")
        self._places = [(left + p.x * scale, bottom - p.y * scale, p) for p in points]
        for x, y, point in self._places:
            radius = px(_SMALLEST_PX + (_LARGEST_PX - _SMALLEST_PX) * math.sqrt(point.number / most) / 2)
            self._batch.add(
                "oval", x - radius, y - radius, x + radius, y + radius, fill=colour("chart_smooth"),
                outline=colour(self.on), tags="point",
            )  # fmt: skip
        self._write(right, 0, "", "text", anchor="ne", tags="words")

    # -- pointing

    def _point_at(self, event: tk.Event[Any]) -> None:
        """Show the values under the pointer."""
        self.delete("pointer")
        if self._places:
            self._describe_point(event.x, event.y)
        is_dragging = self._mouse is not None and self._mouse.is_dragging
        if not self.panes or is_dragging or self.figure.readout is None:
            return
        left, right = self._sides()
        at = self.step_at(min(max(event.x, left), right))
        near = abs(self.step_at(left + self.theme.px(_NEAR_PX)) - self.step_at(left))
        readout = self.figure.readout(at, near)
        if readout is None:
            return
        x, top = self.x(readout.x), self.panes[0].top
        self.create_line(x, top, x, self.panes[-1].bottom, fill=self.theme.colour("faint"), tags="pointer")
        for pane in self.panes:
            self._point_out(pane, readout.x)
        y = 0 if self.figure.reads_at_top else top
        draw_readout(self, self.theme, (x, y), readout.heading, readout.columns, tag="pointer")

    def _point_out(self, pane: Pane, step: float) -> None:
        """Draw a dot on each line of a pane that has a value at a step."""
        radius = self.theme.px(3)
        for line in pane.lines:
            point = line.series.nearest(step)
            if point is not None and point[0] == step and point[1] is not None:
                x, y, colour = self.x(step), pane.y(point[1], on_right=line.on_right), self.theme.colour(line.token)
                self.create_oval(x - radius, y - radius, x + radius, y + radius, fill=colour, width=0, tags="pointer")

    def _describe_point(self, x: float, y: float) -> None:
        near = [(math.hypot(left - x, top - y), p.words) for left, top, p in self._places]
        distance, words = min(near)
        self.itemconfigure("words", text=words if distance <= self.theme.px(_NEAR_PX) else "")

    def _leave(self, _event: tk.Event[Any]) -> None:
        self.delete("pointer")
        self.itemconfigure("words", text="")

    # -- items

    def _bar_colour(self, is_marked: bool) -> str:
        return self.theme.colour("warning" if is_marked else "chart_smooth")

    def _draw_dot(self, x: float, y: float, radius: int, colour: str) -> None:
        self._batch.add("oval", x - radius, y - radius, x + radius, y + radius, fill=colour, width=0, tags="dot")

    def _draw_ring(self, x: float, y: float) -> None:
        radius, px = self.theme.px(6), self.theme.px
        self._batch.add(
            "oval", x - radius, y - radius, x + radius, y + radius, outline=self.theme.colour("good"), width=px(2),
            tags="best",
        )  # fmt: skip

    def _write(
        self, x: float, y: float, text: str, token: str, *, anchor: str, role: str = "caption", tags: str = ""
    ) -> None:
        colour, font = self.theme.colour(token), self.theme.font(role)
        self._batch.add("text", x, y, text=text, fill=colour, font=font, anchor=anchor, tags=tags)
