"""A window that compares runs: their curves on one chart, their figures, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from modules.system.problem import count
from trainer.run_folder.records import RunRecord
from ui.features.runs.comparing import MAX_RUNS, ComparedRun, compared, comparison_lines, figure_rows, setting_rows
from ui.forms.context import Context
from ui.loop.background import Job
from ui.widgets.chart import RunChart
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel, Text
from ui.widgets.table import Column, Table
from ui.widgets.theme import PAD

_SIZE = (980, 680)
_HEADING = "muted"


class RunComparison(Window):
    """Reads the runs in the background, then shows them."""

    def __init__(self, context: Context, records: Sequence[RunRecord]) -> None:
        super().__init__(context.root, context.theme, "Compare runs")
        self.runs: list[ComparedRun] = []
        self._records = records[:MAX_RUNS]
        px = context.theme.px
        footer = Panel(self, context.theme)
        footer.pack(side="bottom", fill="x", padx=px(PAD), pady=px(12))
        Button(footer, context.theme, "Close", self.close, width=92).pack(side="right")
        self.summary = Text(footer, context.theme, "Reading the runs…", colour="muted")
        self.summary.pack(side="left")
        self.chart = RunChart(self, context.theme, on="window")
        self.chart.pack(fill="both", expand=True, padx=px(PAD), pady=(px(PAD), px(8)))
        columns = [Column(f"run{n}", "", 150, is_stretched=True) for n in range(len(self._records))]
        self.table = Table(self, context.theme, (Column("#0", "Setting", 280), *columns), num_rows=9)
        self.table.pack(fill="both", expand=True, padx=px(PAD))
        self._job: Job = context.pump.background.run(partial(compared, self._records), self._show)
        self.appear(*_SIZE)
        self.focus_set()

    def destroy(self) -> None:
        """Also cancel the reading."""
        self._job.cancel()
        super().destroy()

    def _show(self, runs: list[ComparedRun]) -> None:
        self.runs = runs
        self.chart.show(comparison_lines(runs))
        for number, run in enumerate(runs):
            self.table.tree.heading(f"run{number}", text=run.name)
        figures, settings = figure_rows(runs), setting_rows(runs)
        self.table.set_rows(
            [
                *((f" {name}", values, _HEADING) for name, values in figures),
                *((f" {name}", values, "") for name, values in settings),
            ]
        )
        differ = f"{count(len(settings), 'setting')} {'differs' if len(settings) == 1 else 'differ'}"
        self.summary.set_text(f"{differ}. Lines are the smoothed loss, points the validation.")
