"""Comparing runs: their figures, the settings in which they differ, and their curves. No Tk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from modules.config.schema import Config
from trainer.run_folder.records import RunRecord, config_of
from ui.features.runs.wording import model_name, row_of, when
from ui.forms.changes import changes, value_words
from ui.loop.past_runs import past_state
from ui.loop.run_state import RunState
from ui.loop.series import Series
from ui.widgets.chart_model import Line

MAX_RUNS = 5
_COLOURS = ("chart_smooth", "chart_validation", "chart_a", "chart_b", "chart_c")
_FIGURES = ("Result", "Ended", "Steps", "Best validation", "Length", "Size")


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run to compare: its record, its settings if they can be read, and its state."""

    record: RunRecord
    config: Config | None
    state: RunState

    @property
    def name(self) -> str:
        """Its name in the comparison."""
        return when(self.record)

    @property
    def label(self) -> str:
        """Its name in the legend of the chart."""
        return f"{model_name(self.record)} ({when(self.record)})"

    def lines(self, token: str) -> tuple[Line, ...]:
        """Its smoothed loss, and its validation loss if it was measured, in a colour."""
        loss = self.state.curve("smoothed")
        measured = Series((v.step, v.loss) for v in self.state.validations if math.isfinite(v.loss))
        lines = (
            Line("smoothed", self.label, "loss", loss, token, is_of_run=False),
            Line("validation", "validation", "loss", measured, token, "dots", is_of_run=False),
        )
        return tuple(line for line in lines if len(line.series))


def comparison_lines(runs: Sequence[ComparedRun]) -> tuple[Line, ...]:
    """Return the lines of all runs for one chart, each run in a colour of its own."""
    return tuple(line for run, token in zip(runs, _COLOURS, strict=False) for line in run.lines(token))


def compared(records: Sequence[RunRecord]) -> list[ComparedRun]:
    """Read the settings and curves of runs: for a background thread."""
    return [ComparedRun(r, config_of(r.run_dir), past_state(r.run_dir)) for r in records[:MAX_RUNS]]


def figure_rows(runs: Sequence[ComparedRun]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the figures of the runs, a row for each figure and a cell for each run."""
    cells = [row_of(run.record)[1:] for run in runs]
    return [(name, tuple(row[number] for row in cells)) for number, name in enumerate(_FIGURES)]


def setting_rows(runs: Sequence[ComparedRun]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the settings in which the runs differ, a row for each with a cell for each run."""
    configs = [run.config for run in runs]
    first = next((config for config in configs if config is not None), None)
    if first is None:
        return []
    places: dict[str, str] = {}
    cells: dict[str, dict[int, str]] = {}
    for number, config in enumerate(configs):
        for change in changes(config, first) if config is not None else ():
            places.setdefault(change.path, change.place)
            cells.setdefault(change.path, {})[number] = change.now
    rows = []
    for path, place in places.items():
        same = value_words(first, path)
        values = tuple(
            "–" if config is None else cells[path].get(number, same) for number, config in enumerate(configs)
        )
        rows.append((place, values))
    return rows
