"""The reward chart on a canvas: the training reward on the left scale, the held-out reward on the right one.

The two come from different reward models, so only their trends are comparable. If the training reward rises while the
held-out one falls, the training exploits its reward model.
"""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from typing import Any

from trainer.events import RewardMeasured
from ui.loop.wording import reward_line, reward_rows
from ui.widgets.chart_box import BoxColumn, draw_box
from ui.widgets.drawn_canvas import DrawnCanvas
from ui.widgets.plotting import course_range, nearest, tick_label, ticks
from ui.widgets.theme import Theme

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 52, 28, 26
_TICK_SPACING_PX = 70
_DASHES = (4, 3)
_FOLLOWED, _HELD_OUT = "chart_smooth", "chart_validation"

Course = list[tuple[int, float]]


class RewardChart(DrawnCanvas):
    """Call `show` with the measurements; it redraws itself when its size changes."""

    def __init__(self, master: tk.Misc, theme: Theme, *, on: str = "card") -> None:
        super().__init__(master, theme, on=on, width=300, height=110)
        self._measured: Sequence[RewardMeasured] = ()
        self._steps = (0.0, 1.0)
        self.bind("<Motion>", self._point_at)
        self.bind("<Leave>", lambda _e: self.delete("pointer"))
        self.apply_theme()

    def show(self, measured: Sequence[RewardMeasured]) -> None:
        """Draw other measurements."""
        self._measured = measured
        self.draw()

    def draw(self) -> None:
        """Redraw everything."""
        self.delete("all")
        if not self._measured:
            return
        first, last = self._measured[0].step, self._measured[-1].step
        self._steps = (float(first), float(max(last, first + 1)))
        followed = [(m.step, m.followed) for m in self._measured if m.followed is not None]
        held_out = [(m.step, m.held_out) for m in self._measured if m.held_out is not None]
        self._draw_steps()
        self._draw_course(followed, _FOLLOWED, at_left=True)
        self._draw_course(held_out, _HELD_OUT, at_left=False)
        self._draw_legend(has_held_out=bool(held_out))

    def _draw_steps(self) -> None:
        px, span = self.theme.px, self.winfo_width() - self.theme.px(_LEFT + _RIGHT)
        for value in ticks(*self._steps, max(2, span // px(_TICK_SPACING_PX))):
            if value == int(value):
                y = self.winfo_height() - px(_BOTTOM) + px(6)
                self._write(self._x(value), y, tick_label(value), "muted", anchor="n")

    def _draw_course(self, course: Course, token: str, *, at_left: bool) -> None:
        if not course:
            return
        px, colour = self.theme.px, self.theme.colour(token)
        low, high = course_range([value for _, value in course])
        top, bottom = px(_TOP), self.winfo_height() - px(_BOTTOM)

        def y_of(value: float) -> float:
            return bottom - (value - low) / (high - low) * (bottom - top)

        edge = px(_LEFT) if at_left else self.winfo_width() - px(_RIGHT)
        for value in ticks(low, high, max(2, (bottom - top) // px(_TICK_SPACING_PX // 2))):
            if at_left:
                right = self.winfo_width() - px(_RIGHT)
                self.create_line(edge, y_of(value), right, y_of(value), fill=self.theme.colour("chart_grid"))
            label_x, anchor = (edge - px(8), "e") if at_left else (edge + px(8), "w")
            self._write(label_x, y_of(value), tick_label(value), "muted", anchor=anchor)
        points = [(self._x(step), y_of(value)) for step, value in course]
        if len(points) > 1:
            dash = () if at_left else _DASHES
            self.create_line(points, fill=colour, width=px(2), dash=dash, tags="followed" if at_left else "held_out")
        radius = px(3)
        for dot_x, dot_y in points:
            self.create_oval(dot_x - radius, dot_y - radius, dot_x + radius, dot_y + radius, fill=colour, width=0)

    def _draw_legend(self, *, has_held_out: bool) -> None:
        px = self.theme.px
        x, y = px(_LEFT), px(12)
        entries = [
            ("training reward", _FOLLOWED),
            *([("held-out reward (right scale)", _HELD_OUT)] if has_held_out else []),
        ]
        for text, token in entries:
            dash = _DASHES if token == _HELD_OUT else ()
            self.create_line(x, y, x + px(14), y, fill=self.theme.colour(token), width=px(2), dash=dash)
            item = self._write(x + px(20), y, text, "muted", anchor="w")
            x = self.bbox(item)[2] + px(16)

    def _point_at(self, event: tk.Event[Any]) -> None:
        """Show the rewards of all models at the measurement nearest to the pointer."""
        self.delete("pointer")
        px = self.theme.px
        span = self.winfo_width() - px(_LEFT + _RIGHT)
        if span <= 0:
            return
        low, high = self._steps
        found = nearest(self._measured, low + (event.x - px(_LEFT)) / span * (high - low))
        if found is not None:
            columns = [BoxColumn("reward model", reward_rows(found))]
            # Always at the top: the chart is low, and each reward model has a row.
            draw_box(self, self.theme, (self._x(found.step), 0), reward_line(found), columns, tag="pointer")

    def _write(self, x: float, y: float, text: str, token: str, *, anchor: Any) -> int:
        colour, font = self.theme.colour(token), self.theme.font("caption")
        return self.create_text(x, y, text=text, fill=colour, font=font, anchor=anchor)

    def _x(self, step: float) -> float:
        left, right = self.theme.px(_LEFT), self.winfo_width() - self.theme.px(_RIGHT)
        low, high = self._steps
        return left + (step - low) / (high - low) * (right - left)
