"""The curves on the Run page: the chart, the choice of curves and of earlier runs, log scale and zoom."""

from __future__ import annotations

import tkinter as tk
from functools import partial
from pathlib import Path

from modules.families.registry import FAMILIES
from modules.system.paths import from_root
from ui.forms.context import Context
from ui.loop.past_runs import read_past_run, with_curves
from ui.loop.run_state import RunState
from ui.loop.series import PastRun
from ui.widgets.chart import RunChart
from ui.widgets.chart_model import CURVES, SHOWN_AT_FIRST, ChartChoices, Zoom, lines_of, offered, shown
from ui.widgets.controls import Button, Switch
from ui.widgets.menu import make_menu
from ui.widgets.panel import Panel
from ui.widgets.theme import GAP
from ui.widgets.variables import FlagVar

_MOST_RUNS = 12  # in the menu
_MAX_COMPARED = 4
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
        self.is_log = FlagVar(master=self, value=choices.is_log)
        self._add_tools()
        self.chart = RunChart(self, context.theme, on_zoom=self._follow_zoom)
        self.chart.pack(fill="both", expand=True)
        self.chart.set_log(is_log=choices.is_log)
        self.chart.set_zoom(choices.zoom)

    def show(self, state: RunState) -> None:
        """Draw the curves of a run."""
        self._state = state
        lines = lines_of(
            state.series,
            state.validations,
            state.rewards,
            list(self.past.values()),
            unit_labels=_unit_labels(state),
        )
        self.chart.show(shown(lines, self._choices.curves), [v for v in state.validations if v.loss == v.loss])

    def toggle(self, curve: str) -> None:
        """Show a curve, or hide it."""
        self._choices.curves ^= {curve}
        self.show(self._state)

    def toggle_on(self, curve: str) -> None:
        """Show a curve, if it is not shown yet."""
        if curve not in self._choices.curves:
            self.toggle(curve)

    def compare(self, run_dir: Path) -> None:
        """Draw an earlier run, too, or no longer; the oldest choice makes room for a fifth."""
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
        row = Panel(self, theme, "card")
        row.pack(fill="x", padx=(theme.px(8), 0), pady=(theme.px(2), theme.px(2)))
        self.curves_button = Button(row, theme, "Curves ▾", self._open_curves, on="card", height=26)
        self.runs_button = Button(row, theme, "Earlier runs ▾", self._open_runs, on="card", height=26)
        self.zoom_button = Button(row, theme, "Whole run", self._reset_zoom, on="card", height=26)
        for button in (self.curves_button, self.runs_button):
            button.pack(side="left", padx=(0, GAP))
        self.log_switch = Switch(row, theme, self.is_log, text="Log scale", command=self._set_log)
        self.log_switch.pack(side="right")
        self.zoom_button.set_enabled(False)
        tips.attach(self.curves_button, lambda: _CURVES_TIP)
        tips.attach(self.runs_button, lambda: "Draw the smoothed loss of earlier runs, too")
        tips.attach(self.zoom_button, lambda: _ZOOM_TIP)

    def _set_log(self) -> None:
        self._choices.is_log = bool(self.is_log.get())
        self.chart.set_log(is_log=self._choices.is_log)

    def _reset_zoom(self) -> None:
        self.chart.set_zoom(Zoom())

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
        for name in offered(lines) or list(SHOWN_AT_FIRST & CURVES.keys()):
            mark = "✓" if name in self._choices.curves else "  "
            menu.add_command(label=f"{mark}  {CURVES[name]}", command=partial(self.toggle, name))
        self._pop_up(menu, self.curves_button)

    def _open_runs(self) -> None:
        workspace = from_root(self._context.form.config.general.workspace_dir)
        started = self._state.started
        current = Path(started.run_dir) if started else None
        self._context.pump.background.run(partial(with_curves, workspace, without=current), self._offer_runs)

    def _offer_runs(self, folders: list[Path]) -> None:
        if not self.winfo_exists():
            return
        menu = self._new_menu()
        for folder in [*self.past, *(f for f in folders if f not in self.past)][:_MOST_RUNS]:
            mark = "✓" if folder in self.past else "  "
            menu.add_command(label=f"{mark}  {folder.name}", command=partial(self.compare, folder))
        if not folders:
            menu.add_command(label="No earlier runs in the workspace", state="disabled")
        menu.add_separator()
        menu.add_command(label="Another run's folder…", command=self._ask_run)
        self._pop_up(menu, self.runs_button)

    def _ask_run(self) -> None:
        workspace = from_root(self._context.form.config.general.workspace_dir)
        folder = self._context.interaction.ask_folder("Choose a run's folder", workspace)
        if folder is not None:
            self.compare(folder)

    def _new_menu(self) -> tk.Menu:
        self._menu = make_menu(self, self.theme)
        return self._menu

    def _pop_up(self, menu: tk.Menu, button: Button) -> None:
        menu.tk_popup(button.winfo_rootx(), button.winfo_rooty() + button.winfo_height())


def _unit_labels(state: RunState) -> dict[str, str]:
    family = FAMILIES.get(state.started.family) if state.started else None
    return {part.name: part.label for part in family.parts} if family else {}
