"""The loss chart on a canvas: faint loss, strong smoothed loss, validation as points, a ring around the best."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from typing import Any

from trainer.events import ValidationFinished
from ui.run.plotting import loss_range, nearest, tick_label, ticks, weighted_course
from ui.run.run_state import LossPoint
from ui.run.words import concept_rows, timestep_rows
from ui.run.words import loss as loss_words
from ui.theme import Theme
from ui.widgets.chart_box import BoxColumn, draw_box

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 28, 26
_TICK_SPACING_PX = 70
_NEAR_PX = 8
_DASHES = (4, 3)
_NOTHING_YET = "The loss appears here once training has started."


class LossChart(tk.Canvas):
    """Call `show` with the points; it redraws itself when its size changes."""

    def __init__(self, master: tk.Misc, theme: Theme, *, on: str = "card") -> None:
        super().__init__(master, highlightthickness=0, borderwidth=0, width=theme.px(300), height=theme.px(180))
        self.theme = theme
        self._on = on
        self._points: Sequence[LossPoint] = ()
        self._validations: Sequence[ValidationFinished] = ()
        self._steps = (0.0, 1.0)
        self._losses = (0.0, 1.0)
        self.bind("<Configure>", lambda _e: self.draw())
        self.bind("<Motion>", self._point_at)
        self.bind("<Leave>", lambda _e: self.delete("pointer"))
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        self.configure(background=self.theme.colour(self._on))
        self.draw()

    def show(self, points: Sequence[LossPoint], validations: Sequence[ValidationFinished]) -> None:
        """Draw other points."""
        self._points, self._validations = points, validations
        self.draw()

    def draw(self) -> None:
        """Redraw everything: a few milliseconds for thousands of points."""
        self.delete("all")
        if not self._points and not self._validations:
            self._write(self.winfo_width() / 2, self.winfo_height() / 2, _NOTHING_YET, "faint", anchor="center")
            return
        steps = [p.step for p in self._points] + [v.step for v in self._validations]
        self._steps = (float(min(steps)), float(max(max(steps), min(steps) + 1)))
        weighted = weighted_course(self._validations)
        self._losses = loss_range(self._points, [v.loss for v in self._validations] + [w for _, w in weighted])
        self._draw_grid()
        self._draw_line([(p.step, p.loss) for p in self._points if p.loss is not None], "chart_raw", 1)
        smooth = [(p.step, p.smoothed_loss) for p in self._points if p.smoothed_loss is not None]
        self._draw_line(smooth, "chart_smooth", 2)
        self._draw_line(weighted, "chart_validation", 1, is_dashed=True)
        self._draw_validations()
        self._draw_legend(has_weighted=bool(weighted))

    def _draw_grid(self) -> None:
        px, width, height = self.theme.px, self.winfo_width(), self.winfo_height()
        left, right, top, bottom = px(_LEFT), width - px(_RIGHT), px(_TOP), height - px(_BOTTOM)
        for value in ticks(*self._losses, max(2, (bottom - top) // px(_TICK_SPACING_PX // 2))):
            y = self._y(value)
            self.create_line(left, y, right, y, fill=self.theme.colour("chart_grid"))
            self._write(left - px(8), y, tick_label(value), "muted", anchor="e")
        for value in ticks(*self._steps, max(2, (right - left) // px(_TICK_SPACING_PX))):
            if value == int(value):
                self._write(self._x(value), bottom + px(6), tick_label(value), "muted", anchor="n")

    def _draw_line(
        self, points: Sequence[tuple[int, float]], token: str, width_px: int, *, is_dashed: bool = False
    ) -> None:
        if len(points) == 1:
            self._draw_dot(*points[0], token)
        elif points:
            low, high = self._losses
            coordinates = [c for step, value in points for c in (self._x(step), self._y(min(high, max(low, value))))]
            dash = _DASHES if is_dashed else ()
            self.create_line(coordinates, fill=self.theme.colour(token), width=self.theme.px(width_px), dash=dash)

    def _draw_validations(self) -> None:
        self._draw_line([(v.step, v.loss) for v in self._validations], "chart_validation", 1)
        for validation in self._validations:
            self._draw_dot(validation.step, validation.loss, "chart_validation")
        best = next((v for v in self._validations if v.step == self._validations[-1].best_step), None)
        if best is not None:
            self._draw_ring(self._x(best.step), self._y(best.loss))

    def _draw_ring(self, x: float, y: float) -> None:
        radius, colour = self.theme.px(6), self.theme.colour("good")
        self.create_oval(
            x - radius, y - radius, x + radius, y + radius, outline=colour, width=self.theme.px(2), tags="best"
        )

    def _draw_dot(self, step: int, value: float, token: str) -> None:
        x, y, radius = self._x(step), self._y(value), self.theme.px(3)
        self.create_oval(x - radius, y - radius, x + radius, y + radius, fill=self.theme.colour(token), width=0)

    def _draw_legend(self, *, has_weighted: bool) -> None:
        px = self.theme.px
        x, y = px(_LEFT), px(12)
        entries = [("loss", "chart_raw"), ("smoothed", "chart_smooth")]
        entries += [("validation", "chart_validation")] if self._validations else []
        entries += [("weighted", "chart_validation")] if has_weighted else []
        for text, token in entries:
            dash = _DASHES if text == "weighted" else ()
            self.create_line(x, y, x + px(14), y, fill=self.theme.colour(token), width=px(2), dash=dash)
            if text == "validation":
                radius = px(3)
                middle = x + px(7)
                self.create_oval(
                    middle - radius, y - radius, middle + radius, y + radius, fill=self.theme.colour(token), width=0
                )
            item = self._write(x + px(20), y, text, "muted", anchor="w")
            x = self.bbox(item)[2] + px(16)
        if self.find_withtag("best"):
            self._draw_ring(x + px(6), y)
            self._write(x + px(18), y, "best", "muted", anchor="w")

    def _point_at(self, event: tk.Event[Any]) -> None:
        """Show the numbers at the step under the pointer; it snaps to a nearby validation."""
        self.delete("pointer")
        px = self.theme.px
        span = self.winfo_width() - px(_LEFT) - px(_RIGHT)
        if span <= 0:
            return
        low, high = self._steps
        step = low + (event.x - px(_LEFT)) / span * (high - low)
        validation = nearest(self._validations, step)
        if validation is not None and abs(self._x(validation.step) - event.x) > px(_NEAR_PX):
            validation = None
        point = nearest(self._points, step if validation is None else validation.step)
        if validation is not None:
            self._show_values(validation.step, point if point and point.step == validation.step else None, validation)
        elif point is not None:
            self._show_values(point.step, point, None)

    def _show_values(self, step: int, point: LossPoint | None, validation: ValidationFinished | None) -> None:
        """Show a line at a step, and its values: training loss, and validation by concept and timestep."""
        px, x = self.theme.px, self._x(step)
        bottom = self.winfo_height() - px(_BOTTOM)
        self.create_line(x, px(_TOP), x, bottom, fill=self.theme.colour("faint"), tags="pointer")
        columns = []
        if validation is not None:
            is_best = step == self._validations[-1].best_step
            columns = [
                BoxColumn("best validation" if is_best else "validation", concept_rows(validation)),
                BoxColumn("at timestep", timestep_rows(validation)),
            ]
        losses = f": loss {loss_words(point.loss)}, smoothed {loss_words(point.smoothed_loss)}" if point else ""
        draw_box(
            self, self.theme, (x, px(_TOP)), f"Step {step:,}{losses}", [c for c in columns if c.rows], tag="pointer"
        )

    def _write(self, x: float, y: float, text: str, token: str, *, anchor: Any, tags: str = "") -> int:
        colour, font = self.theme.colour(token), self.theme.font("caption")
        return self.create_text(x, y, text=text, fill=colour, font=font, anchor=anchor, tags=tags)

    def _x(self, step: float) -> float:
        left, right = self.theme.px(_LEFT), self.winfo_width() - self.theme.px(_RIGHT)
        low, high = self._steps
        return left + (step - low) / (high - low) * (right - left)

    def _y(self, value: float) -> float:
        top, bottom = self.theme.px(_TOP), self.winfo_height() - self.theme.px(_BOTTOM)
        low, high = self._losses
        return bottom - (value - low) / (high - low) * (bottom - top)
