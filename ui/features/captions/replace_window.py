"""Find and replace over all captions: each change is shown before it is made, and one button undoes them all."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from modules.data.captions.caption_file import parse_caption_file
from modules.system.errors import DarkroomError
from modules.system.problem import count
from ui.features.captions.image_set import ImageSet
from ui.features.captions.replacing import Change, Outcome, Search, WrittenFile, apply, changes, undo
from ui.forms.context import Context
from ui.loop.background import Job, cancel
from ui.widgets.controls import Button, Switch
from ui.widgets.dialog import Window
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import FlagVar, TextVar

_MAX_ROWS = 200
_AROUND_CHARS = 40
_COLUMNS = (
    Column("#0", "File", 170),
    Column("before", "Before", 300, is_stretched=True, is_fitted=True),
    Column("after", "After", 300, is_stretched=True, is_fitted=True),
)


class ListedImages(Protocol):
    """The images whose captions are searched, and the set that they are from."""

    @property
    def set(self) -> ImageSet:
        """All images of the folder."""

    @property
    def images(self) -> Sequence[Path]:
        """The listed images."""


class ReplaceWindow(Window):
    """Replaces in the captions of the images that are listed; `written(texts)` receives the new texts by file."""

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        session: ListedImages,
        written: Callable[[dict[Path, str]], object],
    ) -> None:
        super().__init__(master, context.theme, "Find and replace in captions")
        self.changes: tuple[Change, ...] = ()
        self.last: tuple[WrittenFile, ...] = ()
        """The files of the last replacement, to undo it."""
        self._context, self._session, self._written = context, session, written
        self._job: Job | None = None
        self._build()
        self.at_close(partial(context.pump.forget, self), lambda: cancel(self._job))
        self.appear(860, 600)
        self.find_entry.tk_entry.focus_set()
        self._search()

    @property
    def search(self) -> Search:
        """The entered search."""
        flags = {name: bool(flag.get()) for name, flag in self.flags.items()}
        return Search(self.find.get(), self.replacement.get(), **flags)

    def _build(self) -> None:
        theme, px = self.theme, self.theme.px
        self.find, self.replacement = TextVar(master=self), TextVar(master=self)
        entries = Panel(self, theme)
        entries.pack(fill="x", padx=px(PAD), pady=(px(PAD), 0))
        entries.columnconfigure(1, weight=1)
        for row, (label, variable) in enumerate((("Find", self.find), ("Replace with", self.replacement))):
            Text(entries, theme, label, colour="label").grid(
                row=row, column=0, sticky="w", padx=(0, px(10)), pady=(0, GAP)
            )
            entry = Entry(entries, theme, variable, on="window")
            entry.grid(row=row, column=1, sticky="ew", pady=(0, GAP))
            variable.trace_add("write", lambda *_: self._search_soon())
            if row == 0:
                self.find_entry = entry
        options = Panel(self, theme)
        options.pack(fill="x", padx=px(PAD))
        self.flags: dict[str, FlagVar] = {}
        for name, label in (
            ("is_regex", "Regular expression"),
            ("matches_case", "Match case"),
            ("whole_tags", "Whole tags"),
        ):
            self.flags[name] = FlagVar(master=self)
            Switch(options, theme, self.flags[name], on="window", text=label, command=self._search_soon).pack(
                side="left", padx=(0, px(18))
            )
        self.summary = WrappedText(self, theme, colour="muted")
        self.summary.pack(fill="x", padx=px(PAD), pady=px(8))
        footer = self.add_footer()
        self.replace_button = self.add_main_button("Replace", self.replace, width=120)
        self.undo_button = Button(footer, theme, "Undo the replacement", self.undo, width=160)
        self.undo_button.pack(side="left")
        self.undo_button.set_enabled(False)
        self.table = Table(self, theme, _COLUMNS, on="window")
        self.table.pack(fill="both", expand=True, padx=px(PAD))

    def replace(self) -> None:
        """Make all changes that are shown."""
        if self.changes:
            self._run(partial(apply, self.changes), is_undo=False)

    def undo(self) -> None:
        """Restore the files of the last replacement."""
        if self.last:
            self._run(partial(undo, self.last), is_undo=True)

    def _run(self, work: Callable[[], Outcome], *, is_undo: bool) -> None:
        self.replace_button.set_enabled(False)
        self._context.pump.background.run(work, partial(self._show_outcome, is_undo=is_undo))

    def _show_outcome(self, outcome: Outcome, *, is_undo: bool) -> None:
        self._written({item.path: parse_caption_file(item.after or b"").text for item in outcome.written})
        if not self.winfo_exists():
            return
        self.last = () if is_undo else outcome.written
        self.undo_button.set_enabled(bool(self.last))
        done = f"{'Restored' if is_undo else 'Changed'} {count(len(outcome.written), 'file')}."
        skipped = "".join(f" {path.name} was left alone: {why}." for path, why in outcome.left[:5])
        self._search(f"{done}{skipped}")

    def _search_soon(self) -> None:
        self._context.pump.redraw_soon(self, self._search, at_most_every_seconds=0.2)

    def _search(self, before: str = "") -> None:
        cancel(self._job)
        session = self._session
        files = [session.set.captions[image] for image in session.images]
        texts = {file: session.set.texts[file] for file in files if file in session.set.texts}
        work = partial(changes, self.search, texts)
        self._job = self._context.pump.background.run(work, partial(self._show, before, len(texts)), self._show_failure)

    def _show(self, before: str, num_files: int, changes: tuple[Change, ...]) -> None:
        self._job = None
        self.changes = changes
        self.find_entry.mark_invalid(False)
        matches = sum(change.num_matches for change in changes)
        if not self.find.get():
            status = f"Type what to find in {count(num_files, 'caption file')}."
        else:
            status = f"{count(matches, 'match', 'matches')} in {count(len(changes), 'file')}."
            status += f" The first {_MAX_ROWS} are shown." if len(changes) > _MAX_ROWS else ""
        self.summary.recolour("muted")
        self.summary.set_text(f"{before} {status}".strip())
        self.table.set_rows([(f" {c.path.name}", shorten_pair(c), "") for c in changes[:_MAX_ROWS]])
        self.replace_button.configure(text=f"Replace in {count(len(changes), 'file')}" if changes else "Replace")
        self.replace_button.set_enabled(bool(changes))

    def _show_failure(self, error: Exception) -> None:
        self._job = None
        self.changes = ()
        self.table.set_rows([])
        self.replace_button.set_enabled(False)
        self.find_entry.mark_invalid(True)
        self.summary.recolour("error")
        self.summary.set_text(str(error) if isinstance(error, DarkroomError) else f"This search failed: {error}")


def shorten_pair(change: Change) -> tuple[str, str]:
    """Return a caption before and after its change, from a little before the first difference, on one line each."""
    before, after = change.before, change.after
    first = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    start = max(0, first - _AROUND_CHARS)
    lead = "…" if start else ""
    return tuple(lead + " ⏎ ".join(text[start : start + 300].split("\n")) for text in (before, after))  # type: ignore[return-value]
