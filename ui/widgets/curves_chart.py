"""Curves of several runs on one canvas: a line each, its validation as points, and a legend."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ui.run.plotting import course_range, tick_label, ticks
from ui.theme import Theme

SERIES_COLOURS = ("accent", "info", "good", "error", "warning", "muted")
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 30, 26
_TICK_SPACING_PX = 70
_MAX_NAME_CHARS = 40
_NOTHING = "These runs have no steps to compare."


@dataclass(frozen=True, slots=True)
class Series:
    """A named curve: steps with values, and marked points such as validations."""

    name: str
    line: tuple[tuple[int, float], ...]
    points: tuple[tuple[int, float], ...] = ()


class CurvesChart(tk.Canvas):
    """Call `show` with the series; it redraws itself when its size changes."""

    def __init__(self, master: tk.Misc, theme: Theme, *, on: str = "card") -> None:
        super().__init__(master, highlightthickness=0, borderwidth=0, width=theme.px(300), height=theme.px(160))
        self.theme = theme
        self.series: Sequence[Series] = ()
        self._on = on
        self._steps = self._values = (0.0, 1.0)
        self.bind("<Configure>", lambda _e: self.draw())
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        self.configure(background=self.theme.colour(self._on))
        self.draw()

    def show(self, series: Sequence[Series]) -> None:
        """Draw other series."""
        self.series = series
        self.draw()

    def draw(self) -> None:
        """Redraw everything."""
        self.delete("all")
        points = [point for s in self.series for point in (*s.line, *s.points)]
        if not points:
            self._write(self.winfo_width() / 2, self.winfo_height() / 2, _NOTHING, "faint", anchor="center")
            return
        steps = [step for step, _ in points]
        self._steps = (float(min(steps)), float(max(max(steps), min(steps) + 1)))
        self._values = course_range([value for _, value in points])
        self._draw_grid()
        for number, series in enumerate(self.series):
            self._draw_series(series, SERIES_COLOURS[number % len(SERIES_COLOURS)])
        self._draw_legend()

    def _draw_grid(self) -> None:
        px, width, height = self.theme.px, self.winfo_width(), self.winfo_height()
        left, right, top, bottom = px(_LEFT), width - px(_RIGHT), px(_TOP), height - px(_BOTTOM)
        for value in ticks(*self._values, max(2, (bottom - top) // px(_TICK_SPACING_PX // 2))):
            y = self._y(value)
            self.create_line(left, y, right, y, fill=self.theme.colour("chart_grid"))
            self._write(left - px(8), y, tick_label(value), "muted", anchor="e")
        for value in ticks(*self._steps, max(2, (right - left) // px(_TICK_SPACING_PX))):
            if value == int(value):
                self._write(self._x(value), bottom + px(6), tick_label(value), "muted", anchor="n")

    def _draw_series(self, series: Series, token: str) -> None:
        colour, radius = self.theme.colour(token), self.theme.px(3)
        if len(series.line) > 1:
            flat = [c for step, value in series.line for c in (self._x(step), self._y(value))]
            self.create_line(flat, fill=colour, width=self.theme.px(2), tags="curve")
        dots = series.points if len(series.line) != 1 else (*series.line, *series.points)
        for step, value in dots:
            x, y = self._x(step), self._y(value)
            self.create_oval(x - radius, y - radius, x + radius, y + radius, fill=colour, width=0)

    def _draw_legend(self) -> None:
        px = self.theme.px
        x, y = px(_LEFT), px(12)
        for number, series in enumerate(self.series):
            colour = self.theme.colour(SERIES_COLOURS[number % len(SERIES_COLOURS)])
            self.create_line(x, y, x + px(14), y, fill=colour, width=px(2))
            item = self._write(x + px(20), y, series.name[:_MAX_NAME_CHARS], "muted", anchor="w")
            x = self.bbox(item)[2] + px(16)

    def _write(self, x: float, y: float, text: str, token: str, *, anchor: Any) -> int:
        colour, font = self.theme.colour(token), self.theme.font("caption")
        return self.create_text(x, y, text=text, fill=colour, font=font, anchor=anchor)

    def _x(self, step: float) -> float:
        left, right = self.theme.px(_LEFT), self.winfo_width() - self.theme.px(_RIGHT)
        low, high = self._steps
        return left + (step - low) / (high - low) * (right - left)

    def _y(self, value: float) -> float:
        top, bottom = self.theme.px(_TOP), self.winfo_height() - self.theme.px(_BOTTOM)
        low, high = self._values
        return bottom - (value - low) / (high - low) * (bottom - top)
