"""A plot of a probe on a canvas: dots, a line, a marked place, and the values under the pointer."""

from __future__ import annotations

import math
import tkinter as tk
from typing import Any

from trainer.probe.plot import Plot, y_range
from ui.loop.metric_curves import short_number
from ui.widgets.canvas_batch import CanvasBatch
from ui.widgets.chart_box import BoxColumn, draw_box
from ui.widgets.chart_model import Axis
from ui.widgets.drawn_canvas import DrawnCanvas
from ui.widgets.plotting import tick_label
from ui.widgets.theme import Theme

_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 16, 58, 44
_TICK_SPACING_PX = 70
_DOT_PX = 2


class PlotChart(DrawnCanvas):
    """Call `show` with a plot; it redraws itself when its size changes."""

    def __init__(self, master: tk.Misc, theme: Theme, *, on: str = "window") -> None:
        super().__init__(master, theme, on=on, width=300, height=160)
        self.plot: Plot | None = None
        self._x = self._y = Axis(0.0, 1.0)
        self.bind("<Motion>", self._point_at)
        self.bind("<Leave>", lambda _e: self.delete("pointer"))
        self.apply_theme()

    def show(self, plot: Plot | None) -> None:
        """Draw another plot, or none."""
        if plot is not self.plot:
            self.plot = plot
            self.draw()

    def draw(self) -> None:
        """Redraw everything."""
        self.delete("all")
        plot = self.plot
        if plot is None or not plot.x or self.winfo_width() <= 1:
            return
        self._x, self._y = _x_axis(plot), Axis(*y_range(plot))
        batch = CanvasBatch(self)
        self._draw_axes(batch, plot)
        points = [(self.x(x), self.y(y)) for x, y in zip(plot.x, plot.dots, strict=False) if math.isfinite(y)]
        radius = self.theme.px(_DOT_PX)
        for x, y in points:
            colour = self.theme.colour("chart_raw")
            batch.add("oval", x - radius, y - radius, x + radius, y + radius, fill=colour, width=0, tags="dot")
        line = [(self.x(x), self.y(y)) for x, y in zip(plot.x, plot.line, strict=False) if math.isfinite(y)]
        if len(line) > 1:
            colour, width = self.theme.colour("chart_smooth"), self.theme.px(2)
            batch.add("line", *(c for point in line for c in point), fill=colour, width=width, tags="line")
        self._draw_mark(batch, plot)
        batch.draw()

    def x(self, value: float) -> float:
        """Return the place of a value on the x axis."""
        left, right = self._sides()
        return left + self._x.share(value) * (right - left)

    def y(self, value: float) -> float:
        """Return the place of a value on the y axis."""
        top, bottom = self._ends()
        return bottom - self._y.share(value) * (bottom - top)

    def _sides(self) -> tuple[int, int]:
        px = self.theme.px
        return px(_LEFT), max(px(_LEFT) + 1, self.winfo_width() - px(_RIGHT))

    def _ends(self) -> tuple[int, int]:
        px = self.theme.px
        return px(_TOP), max(px(_TOP) + 1, self.winfo_height() - px(_BOTTOM))

    def _draw_axes(self, batch: CanvasBatch, plot: Plot) -> None:
        px, (left, right), (top, bottom) = self.theme.px, self._sides(), self._ends()
        self._write(batch, left, px(2), plot.title, "text", "nw", role="strong")
        self._write(batch, left, px(22), plot.y_label, "muted", "nw")
        self._write(batch, (left + right) / 2, self.winfo_height() - px(2), plot.x_label, "muted", "s")
        grid = self.theme.colour("chart_grid")
        for value in self._y.ticks(max(2, (bottom - top) // px(_TICK_SPACING_PX // 2))):
            batch.add("line", left, self.y(value), right, self.y(value), fill=grid)
            self._write(batch, left - px(8), self.y(value), tick_label(value), "muted", "e")
        most = max(2, (right - left) // px(_TICK_SPACING_PX))
        for value in plot.x if not plot.is_log and len(plot.x) <= most else self._x.ticks(most):
            batch.add("line", self.x(value), top, self.x(value), bottom, fill=grid)
            self._write(batch, self.x(value), bottom + px(5), tick_label(value), "muted", "n")

    def _draw_mark(self, batch: CanvasBatch, plot: Plot) -> None:
        if plot.mark is None:
            return
        (left, right), (top, bottom) = self._sides(), self._ends()
        x, colour, px = self.x(plot.mark), self.theme.colour("good"), self.theme.px
        batch.add("line", x, top, x, bottom, fill=colour, width=px(2), tags="mark")
        is_right = x > (left + right) / 2
        self._write(batch, x + px(-8 if is_right else 8), top, plot.mark_words, "good", "ne" if is_right else "nw")

    def _write(
        self, batch: CanvasBatch, x: float, y: float, text: str, token: str, anchor: str, *, role: str = "caption"
    ) -> None:
        batch.add("text", x, y, text=text, fill=self.theme.colour(token), font=self.theme.font(role), anchor=anchor)

    def _point_at(self, event: tk.Event[Any]) -> None:
        """Show the values at the measurement that is nearest to the pointer."""
        self.delete("pointer")
        plot, (top, bottom) = self.plot, self._ends()
        if plot is None or not plot.x:
            return
        index = min(range(len(plot.x)), key=lambda n: abs(self.x(plot.x[n]) - event.x))
        x = self.x(plot.x[index])
        self.create_line(x, top, x, bottom, fill=self.theme.colour("faint"), tags="pointer")
        rows = [("measured", short_number(plot.dots[index]))]
        if plot.line is not plot.dots and index < len(plot.line):
            rows.append(("smoothed", short_number(plot.line[index])))
        heading = f"{plot.x_label} {short_number(plot.x[index])}"
        draw_box(self, self.theme, (x, top), heading, [BoxColumn(plot.y_label, rows)], tag="pointer")


def _x_axis(plot: Plot) -> Axis:
    low, high = min(plot.x), max(plot.x)
    if plot.is_log and low > 0:
        return Axis(low, high if high > low else 10 * low, is_log=True)
    return Axis(low, high if high > low else low + 1)
