"""The details of a run on the Run history page: its facts and backups, its curves, its samples."""

from __future__ import annotations

import math
import tkinter as tk
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from modules.system.problem import count
from trainer.events import SampleReady
from trainer.run_folder.backup import BackupInfo
from trainer.run_folder.records import RunRecord
from ui.features.runs.wording import fact_lines, size_words
from ui.forms.context import Context
from ui.loop.background import Job
from ui.loop.past_runs import past_state
from ui.loop.run_state import RunState
from ui.widgets.chart import RunChart
from ui.widgets.chart_model import SHOWN_AT_FIRST, lines_of, shown
from ui.widgets.image_grid import ImageGrid, Tile
from ui.widgets.image_viewer import ImageViewer
from ui.widgets.panel import WrappedText
from ui.widgets.scroll import ScrollFrame
from ui.widgets.stacking_card import StackingCard
from ui.widgets.table import Column, Table

_RUN, _CURVES, _SAMPLES = "Run", "Curves", "Samples"
_BACKUPS = (Column("#0", "Backup", 110), Column("created", "Written", 150, is_stretched=True))
_MAX_ROWS = 8
_STACKS_FROM_PX = 440  # lower, the curves are unreadable below the facts
_NONE = "Select a run to see what became of it."
_NO_SAMPLES = "This run has no samples."


class RunDetails:
    """Shows one run; its log is read in the background, once. The session's own run is shown as it proceeds."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        self.card = StackingCard(master, context.theme, context.pump, stacks_from_px=_STACKS_FROM_PX, weights=(1, 1, 1))
        self.state = RunState()
        self._context = context
        self._record: RunRecord | None = None
        self._job: Job | None = None
        px = context.theme.px
        scroll = ScrollFrame(self.card.add(_RUN, is_offered=True), context.theme, "card")
        scroll.pack(fill="both", expand=True, padx=(px(12), 0))
        self.facts = WrappedText(scroll.body, context.theme, _NONE, colour="label", on="card")
        self.facts.pack(fill="x")
        self.backups = Table(scroll.body, context.theme, _BACKUPS, num_rows=1)
        self.chart = RunChart(self.card.add(_CURVES), context.theme)
        self.chart.pack(fill="both", expand=True)
        self.samples = ImageGrid(
            self.card.add(_SAMPLES), context.theme, context.pump, empty_text=_NO_SAMPLES, on_open=self._open_sample
        )
        self.samples.pack(fill="both", expand=True, padx=(px(12), 0))

    @property
    def backup(self) -> BackupInfo | None:
        """The selected backup of the run; the newest if none is selected."""
        if self._record is None or not self._record.backups:
            return None
        newest_first = self._record.backups[::-1]
        chosen = self.backups.selected
        return newest_first[chosen[0]] if chosen else newest_first[0]

    def show(self, records: Sequence[RunRecord]) -> None:
        """Show the run if there is exactly one; of several, their number and size."""
        record = records[0] if len(records) == 1 else None
        if record is None:
            total = sum(r.size_bytes for r in records)
            self.facts.set_text(f"{count(len(records), 'run')}, {size_words(total)}" if records else _NONE)
        if record == self._record:
            return
        is_other = record is None or self._record is None or record.run_dir != self._record.run_dir
        self._record = record
        if record is not None:
            self.facts.set_text("\n".join(fact_lines(record)))
        self._show_backups(record, keeps_selection=not is_other)
        self._show_state(RunState() if is_other else self.state)
        self._read_log()

    def _show_backups(self, record: RunRecord | None, *, keeps_selection: bool) -> None:
        backups = record.backups[::-1] if record else ()
        self.backups.set_rows([(f" Step {b.step:,}", (b.created.replace("T", " "),), "") for b in backups])
        if not keeps_selection:
            self.backups.select([])
        if backups:
            self.backups.tree.configure(height=min(len(backups), _MAX_ROWS))
            self.backups.pack(fill="x", pady=(self._context.theme.px(10), 0))
        else:
            self.backups.pack_forget()

    def _read_log(self) -> None:
        if self._job is not None:
            self._job.cancel()
        if self._record is None:
            return
        session = self._context.session.state
        if session.started is not None and Path(session.started.run_dir) == self._record.run_dir:
            self._show_state(session)
            return
        work = partial(past_state, self._record.run_dir)
        self._job = self._context.pump.background.run(work, self._show_state)

    def _show_state(self, state: RunState) -> None:
        self.state = state
        lines = shown(lines_of(state.series, state.validations, state.rewards), SHOWN_AT_FIRST)
        self.chart.show(lines, [v for v in state.validations if math.isfinite(v.loss)])
        self.samples.show([Tile(Path(s.path), _words(s)) for s in self._newest_first()])
        self.card.offer(_CURVES, is_offered=bool(lines), is_shown=False)
        self.card.offer(_SAMPLES, is_offered=bool(state.samples), is_shown=False)

    def _open_sample(self, index: int) -> None:
        """Show a sample large, with those of the same prompt on the slider."""
        chosen = self._newest_first()[index]
        same = [s for s in self.state.samples if (s.index, s.is_without_ema) == (chosen.index, chosen.is_without_ema)]
        context, tiles = self._context, [Tile(Path(s.path), _words(s)) for s in same]
        ImageViewer(context.root, context.theme, context.pump, tiles, same.index(chosen), "Sample")

    def _newest_first(self) -> list[SampleReady]:
        """Return the samples, the newest step first, and those of a step in the order of the prompts."""
        return sorted(self.state.samples, key=lambda s: (-s.step, s.index, s.is_without_ema))


def _words(sample: SampleReady) -> str:
    return f"step {sample.step:,}{', without EMA' if sample.is_without_ema else ''}: {sample.prompt}"
