"""The curves of a method as small multiples: label, newest value and course of each metric."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ui.loop.metric_curves import (
    Curves,
    MetricCurve,
    Point,
    metric_label,
    metric_tip,
    short_number,
    shown_names,
    smooth,
)
from ui.widgets.plotting import course_range
from ui.widgets.scroll import ScrollFrame
from ui.widgets.theme import GAP, Theme
from ui.widgets.tooltip import Tooltips

_MIN_WIDTH, _HEIGHT, _MAX_HEIGHT = 138, 46, 220
_HEADER_PX, _FOOT_PX = 18, 4


class MetricGrid(ScrollFrame):
    """Call `show` with the curves; a cell appears for each metric that the run reports."""

    def __init__(self, master: tk.Misc, theme: Theme, tips: Tooltips) -> None:
        super().__init__(master, theme, "card")
        self.cells: dict[str, Sparkline] = {}
        self._tips = tips
        self._num_columns = 0
        self.canvas.configure(width=theme.px(300), height=theme.px(180))  # as high as the loss chart
        self.canvas.bind("<Configure>", lambda _e: self.after_idle(self._arrange), add="+")

    def show(self, curves: Curves) -> None:
        """Draw the curves."""
        names = shown_names(curves)
        if names != list(self.cells):
            for name in [n for n in self.cells if n not in names]:
                self.cells.pop(name).destroy()
            self.cells = {name: self.cells.get(name) or self._new_cell(name) for name in names}
            self._num_columns = 0
            self._arrange()
        for name, cell in self.cells.items():
            cell.show(curves[name])

    def _new_cell(self, name: str) -> Sparkline:
        cell = Sparkline(self.body, self.theme, name)
        self._tips.attach(cell, cell.tip)
        return cell

    def _arrange(self) -> None:
        """Place the cells in as many columns as fit, and use the height that is there."""
        if not self.winfo_exists() or not self.cells or self.canvas.winfo_width() <= 1:
            return
        gap = self.theme.px(GAP)
        fitting = max(1, (self.canvas.winfo_width() + gap) // (self.theme.px(_MIN_WIDTH) + gap))
        num_rows = -(-len(self.cells) // fitting)
        num_columns = -(-len(self.cells) // num_rows)
        free = (self.canvas.winfo_height() - gap * (num_rows - 1)) // num_rows
        height = min(max(free, self.theme.px(_HEIGHT)), self.theme.px(_MAX_HEIGHT))
        for column in range(max(num_columns, self._num_columns)):
            self.body.columnconfigure(column, weight=int(column < num_columns), uniform="cell")
        for number, cell in enumerate(self.cells.values()):
            row, column = divmod(number, num_columns)
            padding = ((0 if column == 0 else gap), 0)
            cell.configure(height=height)
            cell.grid(row=row, column=column, sticky="ew", padx=padding, pady=((gap if row else 0), 0))
        self._num_columns = num_columns


@dataclass(frozen=True, slots=True)
class _Scale:
    """From steps and values to pixels."""

    first: int
    last: int
    low: float
    high: float
    left_px: int
    width_px: int
    bottom_px: int
    height_px: int = 1

    @classmethod
    def over(cls, points: Sequence[Point], canvas: tk.Canvas, theme: Theme) -> _Scale:
        """Return the scale of a course on a canvas."""
        low, high = course_range([value for _, value in points])
        first, bottom, margin = points[0][0], canvas.winfo_height() - theme.px(_FOOT_PX), theme.px(2)
        width, height = canvas.winfo_width() - 2 * margin, bottom - theme.px(_HEADER_PX)
        return cls(first, max(points[-1][0], first + 1), low, high, margin, width, bottom, height)

    def place(self, point: Point) -> tuple[float, float]:
        """Return the place of a point."""
        x = self.left_px + (point[0] - self.first) / (self.last - self.first) * self.width_px
        return x, self.bottom_px - (point[1] - self.low) / (self.high - self.low) * self.height_px


class Sparkline(tk.Canvas):
    """One metric: its label, its newest value or that under the pointer, and its course."""

    def __init__(self, master: tk.Misc, theme: Theme, name: str) -> None:
        super().__init__(master, highlightthickness=0, borderwidth=0, width=theme.px(60), height=theme.px(_HEIGHT))
        self.theme = theme
        self.name = name
        self.curve = MetricCurve()
        self._pointed: Point | None = None
        self._scale = _Scale(0, 1, 0.0, 1.0, 0, 0, 0)
        self.bind("<Configure>", lambda _e: self.draw())
        self.bind("<Motion>", self._point_at)
        self.bind("<Leave>", self._left)
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        self.configure(background=self.theme.colour("card"))
        self.draw()

    def tip(self) -> str:
        """Return the tooltip."""
        return f"{metric_label(self.name)}\n{metric_tip(self.name, self.curve)}"

    def show(self, curve: MetricCurve) -> None:
        """Draw another course."""
        if curve is not self.curve:
            self.curve = curve
            self.draw()

    def draw(self) -> None:
        """Redraw everything."""
        self.delete("all")
        points, width = self.curve.points, self.winfo_width()
        if not points or width <= 1:
            return
        px, colour = self.theme.px, self.theme.colour
        shown = self._pointed or points[-1]
        value = self._write(width, short_number(shown[1]), "text", "small", "ne")
        room = self.bbox(value)[0] - px(6)
        at_step = f" · step {shown[0]:,}" if self._pointed else ""
        label = self._write(0, metric_label(self.name) + at_step, "muted", "caption", "nw")
        self._fit(label, room)
        bottom = self.winfo_height() - 1
        self.create_line(0, bottom, width, bottom, fill=colour("chart_grid"))
        self._scale = _Scale.over(points, self, self.theme)
        firm = smooth(points)
        self._draw_line(points, "chart_raw" if firm else "chart_smooth", 1 if firm else 2)
        self._draw_line(firm, "chart_smooth", 2)
        if len(points) == 1 or self._pointed:
            self._draw_dot(shown)

    def _fit(self, label: int, room_px: float) -> None:
        """Shorten a label that would run into the value."""
        text = str(self.itemcget(label, "text"))  # type: ignore[no-untyped-call]
        while len(text) > 4 and self.bbox(label)[2] > room_px:
            text = text[:-2]
            self.itemconfigure(label, text=f"{text.rstrip()}…")

    def _draw_line(self, points: Sequence[Point], token: str, width_px: int) -> None:
        if len(points) > 1:
            coordinates = [c for point in points for c in self._place(point)]
            self.create_line(coordinates, fill=self.theme.colour(token), width=self.theme.px(width_px), tags="course")

    def _draw_dot(self, point: Point) -> None:
        (x, y), radius = self._place(point), self.theme.px(3)
        self.create_oval(
            x - radius, y - radius, x + radius, y + radius, fill=self.theme.colour("chart_smooth"), width=0
        )

    def _place(self, point: Point) -> tuple[float, float]:
        return self._scale.place(point)

    def _point_at(self, event: tk.Event[Any]) -> None:
        if self.curve.points and self._scale.width_px:
            self._pointed = min(self.curve.points, key=lambda point: abs(self._place(point)[0] - event.x))
            self.draw()

    def _left(self, _event: tk.Event[Any]) -> None:
        self._pointed = None
        self.draw()

    def _write(self, x: float, text: str, token: str, role: str, anchor: Any) -> int:
        return self.create_text(
            x, 0, text=text, fill=self.theme.colour(token), font=self.theme.font(role), anchor=anchor
        )
