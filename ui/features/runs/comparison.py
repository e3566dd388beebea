"""Comparing runs: their curves and settings, and the window that shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from modules.config.schema import Config
from modules.system.problem import count
from trainer.run_folder.differences import (
    MACHINE_LABELS,
    file_differences,
    image_differences,
    list_differences,
    version_text,
)
from trainer.run_folder.recipe import Recipe, known_recipe
from trainer.run_folder.records import RunRecord, config_of
from ui.features.runs.model import memory_text, row_of, start_text, step_text
from ui.forms.changes import changes, value_text
from ui.forms.context import Context
from ui.loop.past_runs import read_past_state
from ui.loop.run_state import RunState
from ui.loop.series import Series
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.panel import Text
from ui.widgets.plot import Plot
from ui.widgets.plot_model import Line
from ui.widgets.run_figures import run_figure
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD

MAX_RUNS = 5
_COLOURS = ("chart_smooth", "chart_validation", "chart_a", "chart_b", "chart_c")
_SAME = "as the first"
_FIGURES = ("Result", "Ended", "Steps", "Best validation", "Length", "Size")


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run to compare: its record, its settings and its recipe if they can be read, and its state."""

    record: RunRecord
    config: Config | None
    state: RunState
    recipe: Recipe | None = None

    @property
    def name(self) -> str:
        """Its name in the comparison."""
        return start_text(self.record)

    @property
    def label(self) -> str:
        """Its name in the legend of the chart."""
        return f"{self.record.title} ({start_text(self.record)})"

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


def compare_runs(records: Sequence[RunRecord]) -> list[ComparedRun]:
    """Read the settings and curves of runs: for a background thread."""
    return [
        ComparedRun(r, config_of(r.run_dir), read_past_state(r.run_dir), known_recipe(r.run_dir))
        for r in records[:MAX_RUNS]
    ]


def figure_rows(runs: Sequence[ComparedRun]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the figures of the runs, a row for each figure and a cell for each run."""
    cells = [row_of(run.record)[1:] for run in runs]
    figures = [(name, tuple(row[number] for row in cells)) for number, name in enumerate(_FIGURES)]
    for name, cell in (("Time of a step", step_text), ("Peak memory", memory_text)):
        values = tuple(cell(run.record.pace) for run in runs)
        if any(value != "–" for value in values):
            figures.append((name, values))
    return figures


def recorded_rows(runs: Sequence[ComparedRun]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the facts in the runs' recipes that differ: versions, machine, models, images.

    A row for each with a cell for each run. Models and images of later runs are compared with the first run's.
    """
    recipes = [run.recipe for run in runs]
    if sum(recipe is not None for recipe in recipes) < 2:
        return []
    facts = [_facts_of(recipe) if recipe is not None else {} for recipe in recipes]
    names = dict.fromkeys(name for of_run in facts for name in of_run)
    rows = [(name, tuple(of_run.get(name, "–") for of_run in facts)) for name in names]
    rows = [(name, cells) for name, cells in rows if len(set(cells)) > 1]
    first = next(recipe for recipe in recipes if recipe is not None)
    for name, find in (("Models", _model_text), ("Images", _image_text)):
        cells = tuple("–" if recipe is None else find(first, recipe) for recipe in recipes)
        if any(cell not in ("–", _SAME) for cell in cells):
            rows.append((name, cells))
    return rows


def _facts_of(recipe: Recipe) -> dict[str, str]:
    facts = {label: str(getattr(recipe.machine, name)) for name, label in MACHINE_LABELS.items()}
    facts |= {name: version_text(name, value) for name, value in recipe.versions.items()}
    return {name[:1].upper() + name[1:]: value for name, value in facts.items()}


def _model_text(first: Recipe, recipe: Recipe) -> str:
    return list_differences(file_differences(first, recipe)) or _SAME


def _image_text(first: Recipe, recipe: Recipe) -> str:
    return list_differences(image_differences(first.concepts, recipe.concepts)) or _SAME


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
        same = value_text(first, path)
        values = tuple(
            "–" if config is None else cells[path].get(number, same) for number, config in enumerate(configs)
        )
        rows.append((place, values))
    return rows


_HEADING = "muted"
_SAMPLES_TIP = "The checkpoints of these runs side by side, sampled with the same prompts and seeds"


class RunComparison(Window):
    """Reads the runs in the background, then shows them."""

    def __init__(self, context: Context, records: Sequence[RunRecord]) -> None:
        super().__init__(context.root, context.theme, "Compare runs")
        self.runs: list[ComparedRun] = []
        self._records = records[:MAX_RUNS]
        px = context.theme.px
        footer = self.add_footer()
        compare = partial(context.links.compare_checkpoints, [record.run_dir for record in self._records])
        self.samples_button = Button(footer, context.theme, "Compare samples…", compare)
        self.samples_button.pack(side="right", padx=(0, GAP))
        context.tips.attach(self.samples_button, lambda: _SAMPLES_TIP)
        self.summary = Text(footer, context.theme, "Reading the runs…", colour="muted")
        self.summary.pack(side="left")
        self.chart = Plot(self, context.theme, on="window", zooms=True)
        self.chart.pack(fill="both", expand=True, padx=px(PAD), pady=(px(PAD), px(8)))
        columns = [Column(f"run{n}", "", 150, is_stretched=True, is_fitted=True) for n in range(len(self._records))]
        self.table = Table(self, context.theme, (Column("#0", "Setting", 280), *columns), num_rows=9)
        self.table.pack(fill="both", expand=True, padx=px(PAD))
        self.at_close(context.pump.background.run(partial(compare_runs, self._records), self._show).cancel)
        self.appear(980, 680)
        self.focus_set()

    def _show(self, runs: list[ComparedRun]) -> None:
        self.runs = runs
        self.chart.show(run_figure(comparison_lines(runs)))
        for number, run in enumerate(runs):
            self.table.tree.heading(f"run{number}", text=run.name)
        figures, recorded, settings = figure_rows(runs), recorded_rows(runs), setting_rows(runs)
        self.table.set_rows(
            [
                *((f" {name}", values, _HEADING) for name, values in figures),
                *((f" {name}", values, "") for name, values in recorded),
                *((f" {name}", values, "") for name, values in settings),
            ]
        )
        differ = f"{count(len(settings), 'setting')} {'differs' if len(settings) == 1 else 'differ'}"
        self.summary.set_text(f"{differ}. Lines are the smoothed loss, points the validation.")
