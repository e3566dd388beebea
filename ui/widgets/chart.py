"""The chart of a run on a canvas: lines in panes with a common axis of steps, hover values, zoom and a legend."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.events import ValidationFinished
from ui.loop.wording import concept_rows, timestep_rows
from ui.widgets.chart_box import BoxColumn, draw_box
from ui.widgets.chart_layout import Pane, in_rows, panes_of
from ui.widgets.chart_model import Line, Zoom, extent_of, values_at
from ui.widgets.drawn_canvas import DrawnCanvas
from ui.widgets.plotting import nearest, tick_label, ticks
from ui.widgets.theme import Theme

_LEFT, _RIGHT, _BOTTOM, _BETWEEN = 52, 12, 26, 14
_LEGEND_ROW, _BELOW_LEGEND = 16, 16
_TICK_SPACING_PX = 70
_NEAR_PX = 8
_DRAG_PX = 5
_DASHES = (4, 3)
_ZOOM = 0.8
_NOTHING_YET = "The loss appears here once training has started."


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of the legend; without a line it is the ring around the best validation."""

    x: int
    y: int
    text: str
    line: Line | None


class RunChart(DrawnCanvas):
    """Call `show` with lines; it redraws itself when its size changes.

    The wheel zooms at the pointer, a drag to what it covers, a drag with Shift moves, and a double click shows the
    whole run. `on_zoom` is called after a change of the zoom.
    """

    def __init__(
        self, master: tk.Misc, theme: Theme, *, on: str = "card", on_zoom: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(master, theme, on=on, width=300, height=180)
        self.zoom = Zoom()
        self.is_log = False
        self.lines: tuple[Line, ...] = ()
        self.validations: Sequence[ValidationFinished] = ()
        self._on_zoom = on_zoom
        self._panes: tuple[Pane, ...] = ()
        self._legend: tuple[_Entry, ...] = ()
        self._steps = (0.0, 1.0)
        self._grabbed: tuple[int, Zoom] | None = None
        self.bind("<Motion>", self._point_at)
        self.bind("<Leave>", lambda _e: self.delete("pointer"))
        self.bind("<Button-1>", self._grab)
        self.bind("<B1-Motion>", self._drag)
        self.bind("<ButtonRelease-1>", self._release)
        self.bind("<Double-Button-1>", lambda _e: self.set_zoom(Zoom()))
        for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
            self.bind(sequence, self._wheel)
        self.apply_theme()

    def show(self, lines: Sequence[Line], validations: Sequence[ValidationFinished] = ()) -> None:
        """Draw other lines; validations add details to the values at their steps."""
        self.lines, self.validations = tuple(lines), validations
        self.draw()

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
        self.delete("all")
        self._panes = ()
        if not self.lines:
            self._write(self.winfo_width() / 2, self.winfo_height() / 2, _NOTHING_YET, "faint", anchor="center")
            return
        if self.winfo_width() <= 1:
            return
        self._steps = self.zoom.over(self.extent)
        self._legend = self._legend_entries()
        self._panes = self._laid_out()
        self._draw_steps()
        for pane in self._panes:
            self._draw_pane(pane)
        self._draw_legend()

    @property
    def extent(self) -> tuple[float, float]:
        """The first and the last step of all lines."""
        return extent_of(self.lines)

    def x(self, step: float) -> float:
        """Return the place of a step on the canvas."""
        left, right = self._sides()
        low, high = self._steps
        return left + (step - low) / (high - low) * (right - left)

    def y(self, value: float, pane: int = 0) -> float:
        """Return the place of a value in a pane."""
        return self._panes[pane].y(value)

    def step_at(self, x: float) -> float:
        """Return the step at a place on the canvas."""
        left, right = self._sides()
        low, high = self._steps
        return low + (x - left) / max(1, right - left) * (high - low)

    # -- drawing

    def _sides(self) -> tuple[int, int]:
        return self.theme.px(_LEFT), max(self.theme.px(_LEFT) + 1, self.winfo_width() - self.theme.px(_RIGHT))

    def _laid_out(self) -> tuple[Pane, ...]:
        px = self.theme.px
        top, bottom = self._legend[-1].y + px(_BELOW_LEGEND), self.winfo_height() - px(_BOTTOM)
        return panes_of(self.lines, self._steps, is_log=self.is_log, top=top, bottom=bottom, between=px(_BETWEEN))

    def _draw_steps(self) -> None:
        (left, right), bottom = self._sides(), self._panes[-1].bottom
        for value in ticks(*self._steps, max(2, (right - left) // self.theme.px(_TICK_SPACING_PX))):
            if value == int(value):
                self._write(self.x(value), bottom + self.theme.px(6), tick_label(value), "muted", anchor="n")

    def _draw_pane(self, pane: Pane) -> None:
        px, (left, right) = self.theme.px, self._sides()
        for value in pane.axis.ticks(max(2, (pane.bottom - pane.top) // px(_TICK_SPACING_PX // 2))):
            y = pane.y(value)
            self.create_line(left, y, right, y, fill=self.theme.colour("chart_grid"))
            self._write(left - px(8), y, tick_label(value), "muted", anchor="e")
        for line in pane.lines:
            self._draw_line(pane, line)

    def _draw_line(self, pane: Pane, line: Line) -> None:
        (left, right), colour = self._sides(), self.theme.colour(line.token)
        low, high = self._steps
        width = self.theme.px(2 if line.style == "line" else 1)
        points = line.series.drawn(low, high, (right - left) // width)  # a thick line shows no more than its width
        if len(points) > 1:
            scale, y = (right - left) / (high - low), pane.y
            coordinates = [c for s, v in _clipped(points, low, high) for c in (left + (s - low) * scale, y(v))]
            dash = _DASHES if line.style == "dashed" else ()
            # Without a join: a mitred one of a steep line would stand out, a round one takes the screen long to draw.
            self.create_line(
                coordinates, fill=colour, width=width, dash=dash, joinstyle="bevel", tags=("course", line.curve)
            )
        if len(points) == 1 or line.style == "dots":
            for step, value in points:
                if low <= step <= high:
                    self._draw_dot(self.x(step), pane.y(value), colour)
        if line.label == "validation":
            self._draw_best(pane)

    def _draw_best(self, pane: Pane) -> None:
        best_step = self.validations[-1].best_step if self.validations else None
        best = next((v for v in self.validations if v.step == best_step), None)
        if best is not None and self._steps[0] <= best.step <= self._steps[1]:
            self._draw_ring(self.x(best.step), pane.y(best.loss))

    def _draw_ring(self, x: float, y: float) -> None:
        radius, colour = self.theme.px(6), self.theme.colour("good")
        self.create_oval(
            x - radius, y - radius, x + radius, y + radius, outline=colour, width=self.theme.px(2), tags="best"
        )

    def _draw_dot(self, x: float, y: float, colour: str, tags: str = "") -> None:
        radius = self.theme.px(3)
        self.create_oval(x - radius, y - radius, x + radius, y + radius, fill=colour, width=0, tags=tags)

    def _draw_legend(self) -> None:
        for entry in self._legend:
            if entry.line is None:
                self._draw_ring(entry.x + self.theme.px(6), entry.y)
            else:
                self._draw_sample(entry.x, entry.y, entry.line)
            self._write(entry.x + self.theme.px(20), entry.y, entry.text, "muted", anchor="w")

    def _draw_sample(self, x: float, y: float, line: Line) -> None:
        colour, dash = self.theme.colour(line.token), _DASHES if line.style == "dashed" else ()
        self.create_line(x, y, x + self.theme.px(14), y, fill=colour, width=self.theme.px(2), dash=dash)
        if line.style == "dots":
            self._draw_dot(x + self.theme.px(7), y, colour)

    def _legend_entries(self) -> tuple[_Entry, ...]:
        """Return the entries of the legend, in as many rows as they need."""
        px, (left, right) = self.theme.px, self._sides()
        has_best = any(v.step == self.validations[-1].best_step for v in self.validations) and any(
            line.label == "validation" for line in self.lines
        )
        texts: list[tuple[str, Line | None]] = [(line.label, line) for line in self.lines]
        texts += [("best", None)] if has_best else []
        font = self.theme.font("caption")
        widths = [px(20 + 16) + int(self.tk.call("font", "measure", font, text)) for text, _ in texts]
        places = in_rows(widths, left, right + px(16))
        return tuple(
            _Entry(x, px(12) + row * px(_LEGEND_ROW), *entry) for (x, row), entry in zip(places, texts, strict=True)
        )

    # -- pointing

    def _point_at(self, event: tk.Event[Any]) -> None:
        """Show the values at the step under the pointer; it snaps to a nearby validation."""
        self.delete("pointer")
        if not self._panes or self._grabbed is not None:
            return
        left, right = self._sides()
        step = self.step_at(min(max(event.x, left), right))
        validation = nearest(self.validations, step)
        if validation is not None and abs(self.x(validation.step) - event.x) > self.theme.px(_NEAR_PX):
            validation = None
        at = float(validation.step) if validation is not None else self._nearest_step(step)
        if at is not None:
            self._show_values(at, validation)

    def _nearest_step(self, step: float) -> float | None:
        """Return the step of any line that is nearest to a step."""
        found = [line.series.nearest(step) for line in self.lines]
        return min((f[0] for f in found if f), key=lambda s: abs(s - step), default=None)

    def _show_values(self, step: float, validation: ValidationFinished | None) -> None:
        """Show a cross at a step, with the values of all lines there, and a validation by concept and timestep."""
        x, top, bottom = self.x(step), self._panes[0].top, self._panes[-1].bottom
        colour = self.theme.colour("faint")
        self.create_line(x, top, x, bottom, fill=colour, tags="pointer")
        for pane in self._panes:
            for line in pane.lines:
                found = line.series.nearest(step)
                if found is not None and found[0] == step and found[1] is not None:
                    self._draw_dot(x, pane.y(found[1]), self.theme.colour(line.token), "pointer")
        columns = [BoxColumn("curve", values_at(self.lines, step))]
        if validation is not None:
            is_best = validation.step == self.validations[-1].best_step
            columns += [
                BoxColumn("best validation" if is_best else "validation", concept_rows(validation)),
                BoxColumn("at timestep", timestep_rows(validation)),
            ]
        draw_box(self, self.theme, (x, top), f"Step {step:,.0f}", [c for c in columns if c.rows], tag="pointer")

    # -- zooming

    def _wheel(self, event: tk.Event[Any]) -> str:
        if self._panes:
            is_in = event.num == 4 or event.delta > 0
            self.set_zoom(self.zoom.at(self.step_at(event.x), _ZOOM if is_in else 1 / _ZOOM, self.extent))
        return "break"

    def _grab(self, event: tk.Event[Any]) -> None:
        self._grabbed = (event.x, self.zoom) if self._panes else None

    def _drag(self, event: tk.Event[Any]) -> None:
        if self._grabbed is None:
            return
        start, zoom = self._grabbed
        self.delete("pointer")
        if _is_shifted(event):
            left, right = self._sides()
            low, high = self._steps
            self.set_zoom(zoom.moved((start - event.x) / (right - left) * (high - low), self.extent))
        else:
            top, bottom = self._panes[0].top, self._panes[-1].bottom
            self.create_rectangle(
                start, top, event.x, bottom, outline=self.theme.colour("accent"), stipple="gray12",
                fill=self.theme.colour("accent"), tags="pointer",
            )  # fmt: skip

    def _release(self, event: tk.Event[Any]) -> None:
        if self._grabbed is None:
            return
        start, _ = self._grabbed
        self._grabbed = None
        self.delete("pointer")
        if abs(event.x - start) > self.theme.px(_DRAG_PX) and not _is_shifted(event):
            self.set_zoom(self.zoom.to(self.step_at(start), self.step_at(event.x), self.extent))

    def _write(self, x: float, y: float, text: str, token: str, *, anchor: Any, tags: str = "") -> int:
        colour, font = self.theme.colour(token), self.theme.font("caption")
        return self.create_text(x, y, text=text, fill=colour, font=font, anchor=anchor, tags=tags)


def _is_shifted(event: tk.Event[Any]) -> bool:
    return isinstance(event.state, int) and bool(event.state & 1)


def _clipped(points: Sequence[tuple[float, float]], low: float, high: float) -> list[tuple[float, float]]:
    """Return a line cut off at both ends of a range; only its first and last point can be outside."""
    clipped = list(points)
    for end, beside, edge in ((0, 1, low), (-1, -2, high)):
        (step, value), (next_step, next_value) = clipped[end], clipped[beside]
        if (step < edge if end == 0 else step > edge) and next_step != step:
            clipped[end] = (edge, value + (next_value - value) * (edge - step) / (next_step - step))
    return clipped
