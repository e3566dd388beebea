"""The details of a run on the Run history page: its facts and backups, its curves, its samples."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from modules.system.problem import count, format_size
from trainer.events import SampleReady
from trainer.run_folder.backup import BackupInfo
from trainer.run_folder.records import RunRecord
from trainer.run_status import RunStatus
from ui.features.runs.model import changes_line, fact_lines
from ui.forms.context import Context
from ui.loop.background import Job, cancel
from ui.loop.past_runs import read_past_state
from ui.loop.pump import Pump
from ui.loop.run_state import RunState
from ui.widgets.controls import Button
from ui.widgets.image_grid import ImageGrid, Tile
from ui.widgets.image_viewer import ImageViewer
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.plot import Plot
from ui.widgets.plot_axes import Zoom
from ui.widgets.run_figures import SHOWN_AT_FIRST, lines_of, run_figure, shown_lines
from ui.widgets.scroll import ScrollFrame
from ui.widgets.table import Column, Table
from ui.widgets.tabs import TabbedCard
from ui.widgets.theme import Theme

_RUN, _CURVES, _SAMPLES = "Run", "Curves", "Samples"
_BACKUPS = (Column("#0", "Backup", 110), Column("created", "Written", 150, is_stretched=True))
_MAX_ROWS = 8
_STACKS_FROM_PX = 440  # lower, the curves are unreadable below the facts
_NONE = "Select a run to see what became of it."
_COMPARE_TIP = "Sample its saves and backups with the same prompts, and choose the best as the result"
_NO_SAMPLES = "This run has no samples."


class RunDetails:
    """Shows one run; its log is read in the background, once. The session's own run is shown as it proceeds."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        self.card = StackingCard(master, context.theme, context.pump, stacks_from_px=_STACKS_FROM_PX, weights=(1, 1, 1))
        self.state = RunState()
        self._context = context
        self._record: RunRecord | None = None
        self._job: Job | None = None
        self._changes_job: Job | None = None
        self._changes = ""
        px = context.theme.px
        view = self.card.add(_RUN, is_offered=True)
        scroll = ScrollFrame(view, context.theme, "card")
        scroll.pack(fill="both", expand=True, padx=(px(12), 0))
        self.facts = WrappedText(scroll.body, context.theme, _NONE, colour="label", on="card")
        self.facts.pack(fill="x")
        line_px = int(view.tk.call("font", "metrics", context.theme.font("body"), "-linespace"))
        view.bind("<Configure>", lambda event: scroll.pack_configure(pady=(0, event.height % line_px)))  # whole lines
        self.backups = Table(scroll.body, context.theme, _BACKUPS, num_rows=1)
        self.compare_button = Button(scroll.body, context.theme, "Compare checkpoints…", self._compare, on="card")
        context.tips.attach(self.compare_button, lambda: _COMPARE_TIP)
        self.chart = Plot(self.card.add(_CURVES), context.theme, zooms=True)
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
        selected = self.backups.selected
        return newest_first[selected[0]] if selected else newest_first[0]

    def show(self, records: Sequence[RunRecord]) -> None:
        """Show the run if there is exactly one; of several, their number and size."""
        record = records[0] if len(records) == 1 else None
        if record is None:
            total = sum(r.size_bytes for r in records)
            self.facts.set_text(f"{count(len(records), 'run')}, {format_size(total)}" if records else _NONE)
        if record == self._record:
            return
        is_other = record is None or self._record is None or record.run_dir != self._record.run_dir
        has_ended = record is not None and self._record is not None and record.status != self._record.status
        self._record = record
        if is_other:
            self.chart.set_zoom(Zoom())  # its steps mean nothing in another run
        if is_other or has_ended:
            self._read_changes()
        self._show_facts()
        self._show_backups(record, keeps_selection=not is_other)
        self._show_compare(record)
        self._show_state(RunState() if is_other else self.state)
        self._read_log()

    def _read_changes(self) -> None:
        """Read what changed since the last finished run: only once, as it reads the logs of other runs."""
        cancel(self._changes_job)
        self._changes = ""
        if self._record is not None:
            self._changes_job = self._context.pump.background.run(
                partial(changes_line, self._record), self._show_changes
            )

    def _show_changes(self, changes: str) -> None:
        self._changes = changes
        self._show_facts()

    def _show_facts(self) -> None:
        if self._record is not None:
            lines = fact_lines(self._record)
            self.facts.set_text("\n".join([*lines, self._changes] if self._changes else lines))

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

    def _show_compare(self, record: RunRecord | None) -> None:
        """Offer to compare the checkpoints of a run that has any."""
        self.compare_button.pack_forget()
        if record is not None and (record.backups or record.outputs):
            tk.Pack.pack_configure(self.compare_button, anchor="w", pady=(self._context.theme.px(10), 0))
            self.compare_button.set_enabled(record.status is not RunStatus.RUNNING)

    def _compare(self) -> None:
        if self._record is not None:
            self._context.links.compare_checkpoints((self._record.run_dir,))

    def _read_log(self) -> None:
        cancel(self._job)
        if self._record is None:
            return
        session = self._context.session.state
        if session.started is not None and Path(session.started.run_dir) == self._record.run_dir:
            self._show_state(session)
            return
        work = partial(read_past_state, self._record.run_dir)
        self._job = self._context.pump.background.run(work, self._show_state)

    def _show_state(self, state: RunState) -> None:
        self.state = state
        lines = shown_lines(lines_of(state.series, state.validations, state.rewards), SHOWN_AT_FIRST)
        self.chart.show(run_figure(lines, state.validations))
        self.samples.show([Tile(Path(s.path), _caption_of(s)) for s in self._newest_first()])
        self.card.offer(_CURVES, is_offered=bool(lines), is_shown=False)
        self.card.offer(_SAMPLES, is_offered=bool(state.samples), is_shown=False)

    def _open_sample(self, index: int) -> None:
        """Show a sample large, with the other samples of its prompt on the slider."""
        sample = self._newest_first()[index]
        same = [s for s in self.state.samples if (s.index, s.is_without_ema) == (sample.index, sample.is_without_ema)]
        context, tiles = self._context, [Tile(Path(s.path), _caption_of(s)) for s in same]
        ImageViewer(context.root, context.theme, context.pump, tiles, same.index(sample), "Sample")

    def _newest_first(self) -> list[SampleReady]:
        """Return the samples, the newest step first, within a step in the order of the prompts."""
        return sorted(self.state.samples, key=lambda s: (-s.step, s.index, s.is_without_ema))


def _caption_of(sample: SampleReady) -> str:
    return f"step {sample.step:,}{', without EMA' if sample.is_without_ema else ''}: {sample.prompt}"


class StackingCard(TabbedCard):
    """Add views with `add`. From a height of `stacks_from_px` on all offered ones are shown, each below its title.

    `weights` are their shares of the height, in the order in which they are added.
    """

    def __init__(
        self, master: tk.Misc, theme: Theme, pump: Pump, *, stacks_from_px: int, weights: tuple[int, ...]
    ) -> None:
        super().__init__(master, theme)
        self.is_stacked = False
        self._pump = pump
        self._stacks_from_px = theme.px(stacks_from_px)
        self._weights = weights
        self._headings: dict[str, Text] = {}
        self.body.rowconfigure(0, weight=0)
        # Not at once: Tk calls this while it places children, when none of them may be moved.
        self.body.bind("<Configure>", lambda _e: pump.redraw_soon((self, "height"), self._fit), add="+")

    def add(self, title: str, *, is_offered: bool = False) -> Panel:
        """Add a view and return its panel."""
        self._headings[title] = Text(self.body, self.bar.theme, title, role="heading", on="card")
        view = super().add(title, is_offered=is_offered)
        view.grid_configure(row=2 * len(self._headings) - 1)
        self._fit()
        return view

    def offer(self, title: str, *, is_offered: bool = True, is_shown: bool = True) -> None:
        """Add a view to the tabs, or remove it; see `TabbedCard.offer`."""
        super().offer(title, is_offered=is_offered, is_shown=is_shown)
        self._fit()

    def show(self, title: str) -> None:
        """Show a view. If all views are shown, it only becomes the selected tab."""
        super().show(title)
        self._place_views()

    def destroy(self) -> None:
        """Also forget the pending redraw."""
        self._pump.forget((self, "height"))
        super().destroy()

    def _fit(self) -> None:
        """Choose between tabs and a stack."""
        titles = [title for title in self.tabs if self.is_offered(title)]
        self.is_stacked = len(titles) > 1 and self.winfo_height() >= self._stacks_from_px
        if self.is_stacked:
            self.bar.pack_forget()
        elif not self.bar.winfo_manager():
            self.pack_bar()
        self._place_views()

    def _place_views(self) -> None:
        pad = self.bar.theme.px
        for number, title in enumerate(self.tabs):
            is_visible = self.is_offered(title) if self.is_stacked else title == self.shown
            heading, view = self._headings[title], self.views[title]
            if is_visible:
                view.grid()
            else:
                view.grid_remove()
            if is_visible and self.is_stacked:
                top = pad(10) if number else pad(12)
                heading.grid(row=2 * number, column=0, sticky="w", padx=(pad(12), 0), pady=(top, pad(4)))
            else:
                heading.grid_remove()
            weight = self._weights[number] if is_visible else 0
            self.body.rowconfigure(2 * number + 1, weight=weight, uniform="views" if weight else "")
