"""The rewards of a run in one place: whether it learns or games its reward, and the curves that show it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Mapping

from modules.objectives.metrics import METRICS
from trainer.wording import reading_of
from ui.features.run.curves import MetricPlot
from ui.loop.metric_curves import MetricCurve
from ui.loop.run_state import RunState
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.plot import Plot
from ui.widgets.run_figures import reward_figure
from ui.widgets.theme import GAP, Theme
from ui.widgets.tooltip import Tooltips

_COLOURS: Mapping[str, str] = {"learning": "good", "gaming": "error", "falling": "warning", "flat": "warning"}
_CELL_HEIGHT = 46
_NO_DISTANCE = "This method does not measure its distance from the model before training: compare the samples."
_HELP = (
    "The training reward should rise, and the held-out reward with it: no run trains on that one. The diversity should "
    "stay, the saturation should not rise by half."
)


class RewardPanel(Panel):
    """Call `show` with the state of the run."""

    def __init__(self, master: tk.Misc, theme: Theme, tips: Tooltips) -> None:
        super().__init__(master, theme, "card")
        px = theme.px
        self.title = Text(self, theme, role="heading", on="card")
        self.title.pack(anchor="w", padx=(px(8), 0))
        self.reason = WrappedText(self, theme, colour="label", on="card")
        self.reason.pack(fill="x", padx=(px(8), 0), pady=(0, px(4)))
        self.cells: dict[str, MetricPlot] = {}
        self._tips = tips
        self._row = Panel(self, theme, "card")
        self._row.pack(side="bottom", fill="x", padx=(px(8), 0), pady=(px(4), 0))
        self.note = WrappedText(self, theme, role="small", colour="muted", on="card")
        self.chart = Plot(self, theme, size_px=(300, 110))
        self.chart.pack(fill="both", expand=True)
        for widget in (self.title, self.reason):
            tips.attach(widget, lambda: _HELP)

    def show(self, state: RunState) -> None:
        """State what the measured rewards show, and draw them with the distance, the diversity and the saturation."""
        distance = distance_of(state)
        newest = distance[1].points[-1][1] if distance is not None and distance[0] == "kl" else None
        reading = reading_of(state.rewards, newest)
        self.title.set_text(reading.title if reading is not None else "")
        self.title.recolour(_COLOURS.get(reading.finding, "text") if reading is not None else "text")
        self.reason.set_text(reading.reason if reading is not None else "")
        self.chart.show(reward_figure(state.rewards))
        has_steps = state.step is not None  # the first one reports the distance, if the method has one
        if distance is None and state.rewards and has_steps:
            self.note.set_text(_NO_DISTANCE)
            self.note.pack(side="bottom", fill="x", padx=(self.theme.px(8), 0), before=self.chart)
        else:
            self.note.pack_forget()
        self._show_cells(health_curves(state))

    def _show_cells(self, curves: Mapping[str, MetricCurve]) -> None:
        if list(curves) != list(self.cells):
            for cell in self.cells.values():
                cell.destroy()
            self.cells = {name: self._new_cell(name, column) for column, name in enumerate(curves)}
        for name, cell in self.cells.items():
            cell.show_curve(curves[name])

    def _new_cell(self, name: str, column: int) -> MetricPlot:
        cell = MetricPlot(self._row, self.theme, name)
        cell.configure(height=self.theme.px(_CELL_HEIGHT))
        self._row.columnconfigure(column, weight=1, uniform="cell")
        cell.grid(row=0, column=column, sticky="ew", padx=((self.theme.px(GAP * 2) if column else 0), 0))
        self._tips.attach(cell, cell.tip)
        return cell


def distance_of(state: RunState) -> tuple[str, MetricCurve] | None:
    """Return the first reported metric that shows how far the model has moved, and its curve; None without one."""
    names = (name for name, metric in METRICS.items() if metric.is_distance)
    return next(((name, curve) for name in names if (curve := state.metrics.get(name)) and curve.points), None)


def health_curves(state: RunState) -> dict[str, MetricCurve]:
    """Return the curves besides the rewards by the metrics' names: the distance, the diversity and the saturation.

    The diversity of rollouts stands in while the diversity of the measured images is not known.
    """
    curves = [distance_of(state)]
    for name in ("diversity", "saturation"):
        curve = MetricCurve()
        for measured in state.rewards:
            if (value := getattr(measured, name)) is not None:
                curve = curve.add(measured.step, value)
        curve = curve if curve.points else state.metrics.get(name, curve)
        curves.append((name, curve) if curve.points else None)
    return dict(one for one in curves if one is not None)
