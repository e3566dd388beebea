"""The Run history page: every run of the known workspaces, what became of each, and what can be done with it."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
import tkinter as tk
from functools import partial
from pathlib import Path

from modules.config.schema import Config
from modules.system.paths import PROGRAM_ROOT
from modules.system.problem import count
from trainer.run_folder.backup import BackupInfo
from trainer.run_folder.records import RunRecord, config_of
from trainer.run_folder.run_dir import give_name
from trainer.run_folder.trash import has_trash
from trainer.run_status import RunStatus
from ui.features.runs.comparison import MAX_RUNS, RunComparison
from ui.features.runs.deletion import RunDeletion
from ui.features.runs.details import RunDetails
from ui.features.runs.fork_window import ForkWindow
from ui.features.runs.model import RunList, row_of
from ui.forms.context import Context
from ui.forms.model import Source
from ui.forms.page import PageFrame
from ui.forms.setting_pages import PageSpec
from ui.loop.background import Job, cancel
from ui.loop.past_runs import read_past_state
from ui.loop.run_state import RunState
from ui.loop.wording import STATUS_COLOURS
from ui.widgets.card import Card
from ui.widgets.controls import Button
from ui.widgets.entry import Entry
from ui.widgets.menu import make_menu, open_at
from ui.widgets.panel import Flow, Panel, Text
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import TextVar, keep

_COLUMNS = (
    Column("#0", "Started", 130),
    Column("model", "Name", 140, is_stretched=True, is_fitted=True, least_px=110),
    Column("ending", "Ended", 92),
    Column("steps", "Steps", 104, is_optional=True),
    Column("best", "Best validation", 112, is_optional=True),
    Column("length", "Length", 96, is_optional=True),
    Column("size", "Size", 74, "e", is_optional=True),
)
_SORTED_BY = {"#0": "started"}
_NOTHING = "No runs yet.\nEvery run that is started here or on the command line is listed on this page."
_NOT_FOUND = "No run matches the search."
_LOOK_SECONDS = 5.0
_COMMANDS = (("resumes it", "resume"), ("repeats it", "train --recipe"), ("compares its images", "report"))


class RunsPage:
    """A searchable table of the runs, the details of the selected one, and buttons."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self.runs = RunList(context.pump.background)
        self.deletion = RunDeletion(context, self.refresh)
        self.listed_runs: list[RunRecord] = []
        self.buttons: dict[str, Button] = {}
        self._context = context
        self._was_active = False
        self._next_look = 0.0
        self._looking_for_trash: Job | None = None
        self._run_to_select: Path | None = None
        self._selects_newest = True  # until something is selected
        px = context.theme.px
        body = Panel(self.frame, context.theme)
        body.grid(row=1, column=0, sticky="nsew", padx=px(PAD + 4), pady=(0, px(PAD)))
        body.rowconfigure(1, weight=1)
        body.columnconfigure(0, weight=3, uniform="runs")
        body.columnconfigure(1, weight=2, uniform="runs")
        self._add_toolbar(body)
        self._add_table(body)
        self.details = RunDetails(body, context)
        tk.Grid.grid_configure(self.details.card, row=1, column=1, sticky="nsew")
        self.summary = Text(self.frame.buttons, context.theme, colour="muted")
        self.summary.pack(side="right")
        self.runs.changed.subscribe(self._soon)
        context.session.changed.subscribe(self._session_changed)
        context.pump.add_source(self._look)
        self._follow()

    def on_show(self) -> None:
        """Read the runs again: others may have been started or ended."""
        self.refresh()

    def show_run(self, run_dir: Path) -> None:
        """Select a run as soon as it is read."""
        self._run_to_select = run_dir
        self.search.set("")
        self._follow()

    def refresh(self) -> None:
        """Find the runs of the form's workspace and of all that were used before."""
        self._next_look = time.monotonic() + _LOOK_SECONDS
        places = self._context.workspaces()
        self.runs.refresh(places)
        cancel(self._looking_for_trash)
        work = partial(has_trash, places)
        self._looking_for_trash = self._context.pump.background.run(work, self._show_trash)

    # -- actions

    def reopen(self) -> None:
        """Load the settings of the selected run into the form, and show its curves and samples on the Run page."""
        record = self._single_run()
        if record is None:
            return

        def show(run: tuple[Config | None, RunState]) -> None:
            config, state = run
            if config is not None:
                self._context.form.load(config, Source(record.name))
            if not self._context.session.is_active:
                self._context.session.show_past(state, config)
                self._context.starter.look_for_backup()  # none is offered next to a run of another machine
                self._context.navigation.open("run")
            loaded = "Loaded the settings of {}. Ctrl+Z brings back your own."
            message = loaded if config is not None else "The settings of {} cannot be read."
            self._context.notify(message.format(record.name))

        self._context.pump.background.run(lambda: (config_of(record.run_dir), read_past_state(record.run_dir)), show)

    def resume(self) -> None:
        """Resume the selected run from the backup chosen in its details: the newest, unless another is selected.

        After its last step a complete run has nothing left to train, or would stop early again: it is trained longer.
        """
        record, backup, starter = self._single_run(), self._backup(), self._context.starter
        if record is None or backup is None:
            return
        if record.status.is_complete and backup.step >= record.step:
            result = Path(record.destination).name or "its result"
            is_early = record.status is RunStatus.STOPPED_EARLY
            starter.ask_longer(backup, backup.epoch, result, self._context.notify, stopped_early=is_early)
        else:
            starter.resume_run(backup)

    def fork(self) -> ForkWindow | None:
        """Ask from which backup or saved model of the selected run a new run starts; its settings are loaded then."""
        record = self._single_run()
        if record is None:
            return None
        backup = self.details.backup
        return ForkWindow(self._context, record, backup.path if backup is not None else None)

    def compare(self) -> RunComparison | None:
        """Compare the selected runs in a window."""
        records = self.selected_runs
        return RunComparison(self._context, records) if len(records) > 1 else None

    def open_folder(self) -> None:
        """Open the folder of the selected run."""
        record = self._single_run()
        if record is not None:
            self._context.interaction.open_path(record.run_dir)

    def rename(self) -> None:
        """Ask for a name of the selected run, under which it is listed; the name of its folder stays."""
        record = self._single_run()
        if record is None:
            return
        name = self._context.interaction.ask_text(
            "Name of the run", "The list and comparisons show it. Without one they show its result.", record.given_name
        )
        if name is None:
            return
        try:
            give_name(record.run_dir, name)
        except OSError as error:
            self._context.notify(f"The name cannot be written: {error.strerror or error}.")
        self.refresh()

    def copy_command(self, verb: str) -> None:
        """Put a command line for the selected run on the clipboard."""
        record = self._single_run()
        if record is not None:
            command = command_line(verb, record.run_dir)
            self.frame.clipboard_clear()
            self.frame.clipboard_append(command)
            self._context.notify(f"Copied: {command}")

    def _open_menu(self) -> None:
        open_at(self.make_menu(), self.buttons["more"])

    def make_menu(self) -> tk.Menu:
        """Return the menu of what is needed now and then."""
        menu = make_menu(self.buttons["more"], self._context.theme)
        record = self._single_run()
        if record is not None and record.remote and self._context.starter.can_start:
            follow = partial(self._context.links.follow_run, record.run_dir)
            if record.status is RunStatus.ELSEWHERE:
                menu.add_command(label=f"Follow on {record.remote}", command=follow)
                menu.add_separator()
            elif record.status.can_be_resumed:
                menu.add_command(label=f"Resume on {record.remote}", command=partial(follow, resumes=True))
                menu.add_separator()
        menu.add_command(label="Rename…", accelerator="F2", command=self.rename)
        menu.add_command(label="Open folder", command=self.open_folder)
        if (backup := self._backup()) is not None and self._context.starter.can_start:
            menu.add_command(label="Compare its images", command=partial(self._context.starter.compare_images, backup))
        menu.add_separator()
        for label, verb in _COMMANDS:
            menu.add_command(label=f"Copy the command that {label}", command=partial(self.copy_command, verb))
        return menu

    def delete(self) -> None:
        """Show what a deletion of the selected runs removes, and move them to the trash if that is confirmed."""
        self.deletion.ask([r for r in self.selected_runs if r.status is not RunStatus.RUNNING])

    @property
    def selected_runs(self) -> list[RunRecord]:
        """The selected runs, in the order of the list."""
        return [self.listed_runs[n] for n in self.table.selected if n < len(self.listed_runs)]

    # -- building

    def _add_toolbar(self, body: Panel) -> None:
        context, px = self._context, self._context.theme.px
        self._toolbar = bar = Flow(body, context.theme, gap_px=GAP, on="window")
        bar.grid(row=0, column=0, columnspan=2, sticky="ew", pady=(0, px(10)))
        self.search = TextVar(master=bar)
        keep(self.search, context.view_state.of("runs", dict), "search")
        self.entry = Entry(bar, context.theme, self.search, on="window", width=170, placeholder="Search the runs")
        bar.add(self.entry)
        self.search.trace_add("write", lambda *_: self._search())
        for name, label, press, tip in (
            ("reopen", "Reopen", self.reopen, "Load its settings, and show its curves and samples on the Run page"),
            ("resume", "Resume", self.resume, "Continue it from its newest backup, or from the one selected"),
            ("fork", "Fork…", self.fork, "A new run from one of its backups or saves; this one stays as it is"),
            ("compare", "Compare", self.compare, f"Curves, figures and settings of 2 to {MAX_RUNS} selected runs"),
            ("delete", "Delete…", self.delete, "Move it to the trash, after a preview (Delete)"),
        ):
            self.buttons[name] = context.buttons.add(bar, label, press, tip)
        self.buttons["more"] = Button(bar, context.theme, "More ▾", self._open_menu)
        bar.add(self.buttons["more"])
        self.buttons["trash"] = Button(bar, context.theme, "Empty trash…", self.deletion.empty_trash, style="ghost")

    def _add_table(self, body: Panel) -> None:
        context, px = self._context, self._context.theme.px
        card = Card(body, context.theme)
        tk.Grid.grid_configure(card, row=1, column=0, sticky="nsew", padx=(0, px(PAD)))
        self.table = Table(card.body, context.theme, _COLUMNS)
        self.table.pack(fill="both", expand=True, padx=(px(8), 0))
        for column in _COLUMNS:
            press = partial(self._sort_by, _SORTED_BY.get(column.name, column.name))
            self.table.tree.heading(column.name, command=press)
        self.table.on_events(
            {
                "<<TreeviewSelect>>": self._select_changed,
                "<Return>": self.reopen,
                "<Double-Button-1>": self.reopen,
                "<Delete>": self.delete,
                "<F2>": self.rename,
            }
        )
        self.table.tree.bind("<Control-a>", lambda _e: self.table.select(range(len(self.listed_runs))))

    # -- following

    def _soon(self) -> None:
        if self.frame.is_shown:
            self._context.pump.redraw_soon(self, self._follow, at_most_every_seconds=0.2)

    def _session_changed(self) -> None:
        """Read again when a run of this window began or ended."""
        is_active = self._context.session.is_active
        if is_active != self._was_active:
            self._was_active = is_active
            self._next_look = 0.0

    def _look(self, _deadline: float) -> bool:
        """Read again from time to time while the page is shown: runs proceed, here and in other programs."""
        now = time.monotonic()
        if self.frame.is_shown and now >= self._next_look:
            self.refresh()
        return False

    def _search(self) -> None:
        self.runs.search = self.search.get()
        self._follow()

    def _sort_by(self, column: str) -> None:
        self.runs.sorting = self.runs.sorting.by(column)
        self._follow()

    def _follow(self) -> None:
        """Show the list; the selection stays with its runs."""
        selection = {record.run_dir for record in self.selected_runs}
        selects_newest = bool(selection) or self._selects_newest
        if self._run_to_select is not None and self.runs.of(self._run_to_select) is not None:
            selection, self._run_to_select = {self._run_to_select}, None
        records = self.runs.visible()
        if records != self.listed_runs:
            self.listed_runs = records
            self.table.set_rows([_row(record) for record in records])
        rows_to_select = [n for n, record in enumerate(records) if record.run_dir in selection]
        if records and not rows_to_select and selects_newest and self._run_to_select is None:
            rows_to_select = [0]
        self._selects_newest = selects_newest and not rows_to_select
        if rows_to_select != self.table.selected:
            self.table.select(rows_to_select)
        self._show_headings()
        self.table.explain_empty("" if self.runs.is_reading else _NOT_FOUND if len(self.runs) else _NOTHING)
        number = count(len(self.runs), "run")
        self.summary.set_text(f"{number}, reading…" if self.runs.is_reading else number)
        self._select_changed()

    def _show_trash(self, has_any: bool) -> None:
        self._toolbar.show(self.buttons["trash"], is_shown=has_any)

    def _show_headings(self) -> None:
        sorting = self.runs.sorting
        for column in _COLUMNS:
            is_sorted = _SORTED_BY.get(column.name, column.name) == sorting.column
            arrow = (" ▾" if sorting.is_descending else " ▴") if is_sorted else ""
            self.table.tree.heading(column.name, text=f"{column.heading}{arrow}")

    def _select_changed(self) -> None:
        records = self.selected_runs
        self.details.show(records)
        one = records[0] if len(records) == 1 else None
        can_start = self._context.starter.can_start
        is_free = one is not None and one.status is not RunStatus.RUNNING
        enabled = {
            "reopen": one is not None,
            "resume": is_free and bool(one and one.backups) and can_start,
            "fork": bool(one and (one.backups or one.outputs)),
            "compare": len(records) > 1,
            "more": one is not None,
            "delete": any(r.status is not RunStatus.RUNNING for r in records),
        }
        for name, is_enabled in enabled.items():
            self.buttons[name].set_enabled(is_enabled)

    def _single_run(self) -> RunRecord | None:
        return self.selected_runs[0] if len(self.selected_runs) == 1 else None

    def _backup(self) -> BackupInfo | None:
        return self.details.backup if self._single_run() is not None else None


def command_line(verb: str, run_dir: Path) -> str:
    """Return the command line of a verb for a run, as the shell of this computer reads it."""
    if sys.platform == "win32":
        return subprocess.list2cmdline([str(PROGRAM_ROOT / "start-ui.bat"), *verb.split(), str(run_dir)])
    return shlex.join([str(PROGRAM_ROOT / "start-ui.sh"), *verb.split(), str(run_dir)])


def _row(record: RunRecord) -> tuple[str, tuple[str, ...], str]:
    started, *cells = row_of(record)
    return f" {started}", tuple(cells), STATUS_COLOURS.get(record.status, "")
