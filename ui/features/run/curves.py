"""The curves on the Run page: the chart with its choices, and the metrics of a method as small plots."""

from __future__ import annotations

import math
import tkinter as tk
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from modules.families.registry import FAMILIES
from modules.system.paths import from_root
from ui.features.run.facts import verdict_line
from ui.forms.context import Context
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
from ui.loop.past_runs import list_runs_with_log, read_past_run
from ui.loop.run_state import RunState
from ui.loop.series import EMPTY, PastRun, Series
from ui.widgets.controls import Button, Switch
from ui.widgets.fitted_text import FittedTexts
from ui.widgets.menu import make_menu, open_at
from ui.widgets.panel import Panel, WrappedText, call_later
from ui.widgets.plot import Plot
from ui.widgets.plot_axes import Axis, Zoom, padded_axis
from ui.widgets.plot_model import SMALL, Figure, Line
from ui.widgets.run_figures import (
    CURVES,
    SHOWN_AT_FIRST,
    ChartChoices,
    lines_of,
    offered_curves,
    run_figure,
    shown_lines,
)
from ui.widgets.scroll import ScrollFrame
from ui.widgets.theme import GAP, Theme
from ui.widgets.tooltip import Tooltips
from ui.widgets.variables import FlagVar

_MAX_RUNS = 12  # in the menu
_MAX_COMPARED = 4
_READ_AGAIN = 1.01  # times as many losses as when the verdict was read
_MIN_WIDTH, _HEIGHT, _MAX_HEIGHT = 138, 46, 220  # of the plot of a metric
_CURVES_TIP = "Choose the curves. Those with another unit have a chart of their own below the loss."
_ZOOM_TIP = "Show the whole run again (double click).\nWheel or drag: zoom. Shift and drag: move."


class RunCurves(Panel):
    """Call `show` with the state of the run."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme, "card")
        self._choices = choices = context.view_state.of("chart", ChartChoices)
        self.past = choices.past
        self._context = context
        self._state = RunState()
        self._menu: tk.Menu | None = None
        self._read: tuple[object, ...] = ()  # what the verdict is about
        self.is_log = FlagVar(master=self, value=choices.is_log)
        self._add_tools()
        self.chart = Plot(self, context.theme, zooms=True, on_zoom=self._follow_zoom)
        self.chart.show(run_figure(()))
        self.verdict = WrappedText(self, context.theme, role="small", colour="label", on="card")
        self.verdict.pack(side="bottom", fill="x", padx=(context.theme.px(8), 0))
        self.chart.pack(fill="both", expand=True)
        self.chart.set_log(is_log=choices.is_log)
        self.chart.set_zoom(choices.zoom)

    def show(self, state: RunState) -> None:
        """Draw the curves of a run, and state what its losses show."""
        self._state = state
        self._show_verdict(state)
        lines = lines_of(
            state.series,
            state.validations,
            state.rewards,
            list(self.past.values()),
            unit_labels=_unit_labels(state),
        )
        self.chart.show(run_figure(shown_lines(lines, self._choices.curves), state.validations))

    def _show_verdict(self, state: RunState) -> None:
        """State what losses and rewards show; again once there is a hundredth more: reading a million takes 0.1 s."""
        losses = state.series.get("loss", EMPTY)
        read = (
            state.started,
            state.validations,
            state.rewards,
            state.is_over,
            int(math.log(max(1, len(losses)), _READ_AGAIN)),
        )
        if read != self._read:
            self._read = read
            self.verdict.set_text(verdict_line(state))

    def show_tools(self, *, is_shown: bool) -> None:
        """Show the buttons above the chart; in a low place the chart has their room."""
        if not is_shown:
            self._tools.pack_forget()
        elif not self._tools.winfo_manager():
            px, first = self.theme.px, self.pack_slaves()[:1]
            before: dict[str, Any] = {"before": first[0]} if first else {}
            self._tools.pack(fill="x", padx=(px(8), 0), pady=(px(2), px(2)), **before)

    def show_chart(self, *, is_shown: bool) -> None:
        """Show the chart; in a place that is too low for its labels only the verdict is left."""
        if not is_shown:
            self.chart.pack_forget()
        elif not self.chart.winfo_manager():
            self.chart.pack(fill="both", expand=True)

    def toggle(self, curve: str) -> None:
        """Show a curve, or hide it."""
        self._choices.curves ^= {curve}
        self.show(self._state)

    def compare(self, run_dir: Path) -> None:
        """Add the curve of an earlier run, or remove it; the oldest choice makes room for a fifth."""
        if self.past.pop(run_dir, None) is not None:
            self.show(self._state)
            return
        self._context.pump.background.run(partial(read_past_run, run_dir), partial(self._compare_with, run_dir))

    def _compare_with(self, run_dir: Path, run: PastRun) -> None:
        if not self.winfo_exists():
            return
        if not any(len(series) for series in run.series.values()):
            self._context.notify(f"{run.name} has no steps to show.")
            return
        while len(self.past) >= _MAX_COMPARED:
            self.past.pop(next(iter(self.past)))
        self.past[run_dir] = run
        self.show(self._state)

    def _add_tools(self) -> None:
        theme, tips = self.theme, self._context.tips
        self._tools = row = Panel(self, theme, "card")
        self.show_tools(is_shown=True)
        self.curves_button = Button(row, theme, "Curves ▾", self._open_curves, on="card", height=26)
        self.runs_button = Button(row, theme, "Earlier runs ▾", self._open_runs, on="card", height=26)
        self.zoom_button = Button(row, theme, "Whole run", lambda: self.chart.set_zoom(Zoom()), on="card", height=26)
        for button in (self.curves_button, self.runs_button):
            button.pack(side="left", padx=(0, GAP))
        self.log_switch = Switch(row, theme, self.is_log, text="Log scale", command=self._set_log)
        self.log_switch.pack(side="right")
        self.zoom_button.set_enabled(False)
        tips.attach(self.curves_button, lambda: _CURVES_TIP)
        tips.attach(self.runs_button, lambda: "Also draw the smoothed loss of earlier runs")
        tips.attach(self.zoom_button, lambda: _ZOOM_TIP)

    def _set_log(self) -> None:
        self._choices.is_log = bool(self.is_log.get())
        self.chart.set_log(is_log=self._choices.is_log)

    def _follow_zoom(self) -> None:
        self._choices.zoom = self.chart.zoom
        is_zoomed = self.chart.zoom.steps is not None
        self.zoom_button.set_enabled(is_zoomed)
        if is_zoomed:
            self.zoom_button.pack(side="left", padx=(0, GAP))
        else:
            self.zoom_button.pack_forget()

    def _open_curves(self) -> None:
        lines = lines_of(self._state.series, self._state.validations, self._state.rewards)
        menu = self._new_menu()
        for name in offered_curves(lines) or list(SHOWN_AT_FIRST & CURVES.keys()):
            mark = "✓" if name in self._choices.curves else "  "
            menu.add_command(label=f"{mark}  {CURVES[name]}", command=partial(self.toggle, name))
        open_at(menu, self.curves_button)

    def _open_runs(self) -> None:
        workspace = from_root(self._context.form.config.general.workspace_dir)
        started = self._state.started
        current = Path(started.run_dir) if started else None
        self._context.pump.background.run(partial(list_runs_with_log, workspace, without=current), self._offer_runs)

    def _offer_runs(self, folders: list[Path]) -> None:
        if not self.winfo_exists():
            return
        menu = self._new_menu()
        for folder in [*self.past, *(f for f in folders if f not in self.past)][:_MAX_RUNS]:
            mark = "✓" if folder in self.past else "  "
            menu.add_command(label=f"{mark}  {folder.name}", command=partial(self.compare, folder))
        if not folders:
            menu.add_command(label="No earlier runs in the workspace", state="disabled")
        menu.add_separator()
        menu.add_command(label="Another run's folder…", command=self._ask_run)
        open_at(menu, self.runs_button)

    def _ask_run(self) -> None:
        workspace = from_root(self._context.form.config.general.workspace_dir)
        folder = self._context.interaction.ask_folder("Choose a run's folder", workspace)
        if folder is not None:
            self.compare(folder)

    def _new_menu(self) -> tk.Menu:
        self._menu = make_menu(self, self.theme)
        return self._menu


class MetricGrid(ScrollFrame):
    """Call `show` with the curves; a cell appears for each metric that the run reports."""

    def __init__(self, master: tk.Misc, theme: Theme, tips: Tooltips) -> None:
        super().__init__(master, theme, "card")
        self.cells: dict[str, MetricPlot] = {}
        self._tips = tips
        self._num_columns = 0
        self.canvas.configure(width=theme.px(300), height=theme.px(180))  # as high as the loss chart
        self.canvas.bind("<Configure>", lambda _e: call_later(self, "idle", self._arrange), add="+")

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
            cell.show_curve(curves[name])

    def _new_cell(self, name: str) -> MetricPlot:
        cell = MetricPlot(self.body, self.theme, name)
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


class MetricPlot(Plot):
    """One metric: its label, its newest value or the value under the pointer, and its course."""

    def __init__(self, master: tk.Misc, theme: Theme, name: str) -> None:
        self.name = name
        self.curve = MetricCurve()
        self._pointed: Point | None = None
        super().__init__(master, theme, size_px=(60, _HEIGHT))
        self._texts = FittedTexts(self, theme)

    def tip(self) -> str:
        """Return the tooltip."""
        return f"{metric_label(self.name)}\n{metric_tip(self.name, self.curve)}"

    def show_curve(self, curve: MetricCurve) -> None:
        """Draw another course."""
        if curve is not self.curve:
            self.curve = curve
            self.show(metric_figure(curve.points))

    def draw_above(self) -> None:
        """Write the label and the value, and mark the value under the pointer."""
        px, width, bottom = self.theme.px, self.winfo_width(), self.winfo_height() - 1
        step, value = self._pointed or self.curve.points[-1]
        words = short_number(value)
        label = metric_label(self.name) + (f" · step {step:,}" if self._pointed else "")
        room = width - self._texts.width(words, "small") - px(6)
        self._write(width, 0, words, "text", anchor="ne", role="small")
        self._write(0, 0, self._texts.fit(label, "caption", room), "muted", anchor="nw")
        self._batch.add("line", 0, bottom, width, bottom, fill=self.theme.colour("chart_grid"))
        if self._pointed:
            self._draw_dot(self.x(step), self.y(value), px(3), self.theme.colour("chart_smooth"))

    def _point_at(self, event: tk.Event[Any]) -> None:
        if self.panes:
            self._point_to(min(self.curve.points, key=lambda point: abs(self.x(point[0]) - event.x)))

    def _leave(self, _event: tk.Event[Any]) -> None:
        self._point_to(None)

    def _point_to(self, point: Point | None) -> None:
        if point != self._pointed:
            self._pointed = point
            self.draw()


def metric_figure(points: Sequence[Point]) -> Figure:
    """Return the figure of a metric: its values, and for a long course their moving average."""
    average = smooth(points)
    raw = Line("value", "", "", Series(points), *(("chart_raw", "thin") if average else ("chart_smooth", "line")))
    lines = (raw, Line("average", "", "", Series(average), "chart_smooth")) if average else (raw,)
    return Figure(
        frame=SMALL,
        lines=lines,
        x=Axis(points[0][0], max(points[-1][0], points[0][0] + 1)),
        y=padded_axis([value for _, value in points]),
    )


def _unit_labels(state: RunState) -> dict[str, str]:
    family = FAMILIES.get(state.started.family) if state.started else None
    return family.part_labels if family else {}
