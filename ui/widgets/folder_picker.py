"""Choosing several folders at once. Tk's own dialog accepts only one and shows no image counts."""

from __future__ import annotations

import os
import time
import tkinter as tk
from pathlib import Path

from modules.data.listing import SUFFIXES
from ui.interaction import Answer
from ui.theme import GAP, Theme
from ui.widgets.controls import Button
from ui.widgets.dialog import Dialog
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text
from ui.widgets.table import Column, Table
from ui.widgets.variables import TextVar

_COUNTING_SECONDS = 0.1
_COLUMNS = (Column("#0", "Folder", 380, is_stretched=True), Column("images", "Images", 90, "e"))


class FolderPicker(Dialog):
    """A list of the folders in a folder. A double click opens one; Choose returns the selected or open one."""

    def __init__(self, root: tk.Misc, theme: Theme, title: str, start: Path, *, is_multiple: bool) -> None:
        answers = (Answer("cancel", "Cancel"), Answer("ok", "Choose", is_default=True))
        super().__init__(root, theme, title, "", answers)
        self.folder = start
        self._folders: list[Path] = []
        self._chosen: tuple[Path, ...] = ()
        hint = "Click to select (Ctrl or Shift for several). Double-click to open."
        if not is_multiple:
            hint = "Click to select. Double-click to open."
        Text(self.content, theme, hint, colour="muted").pack(anchor="w", pady=(theme.px(4), theme.px(10)))
        bar = Panel(self.content, theme)
        bar.pack(fill="x")
        self.path = TextVar(master=self)
        self.entry = Entry(bar, theme, self.path, on="window")
        self.up_button = Button(bar, theme, "Up", lambda: self.open(self.folder.parent), width=48)
        self.home_button = Button(bar, theme, "Home", lambda: self.open(Path.home()), width=56)
        self.home_button.pack(side="right", padx=(GAP, 0))
        self.up_button.pack(side="right", padx=(GAP, 0))
        self.entry.pack(side="left", fill="x", expand=True)
        self.entry.tk_entry.bind("<Return>", self._typed, add="+")
        self.table = Table(self.content, theme, _COLUMNS)
        self.table.pack(fill="both", expand=True, pady=(theme.px(10), theme.px(12)))
        self.table.tree.configure(selectmode="extended" if is_multiple else "browse", height=12)
        self.table.on_events({"<Double-Button-1>": self._enter_selected, "<BackSpace>": self._go_up})
        self.open(start)

    def ask(self) -> tuple[Path, ...]:  # type: ignore[override]  # a picker answers with folders
        """Show the dialog and return the chosen folders."""
        super().ask()
        return self._chosen

    def choose(self, name: str) -> None:
        """Return the selected folders, or the open folder if none is selected."""
        if name == "ok":
            self._chosen = tuple(self._folders[i] for i in self.table.selected) or (self.folder,)
        super().choose(name)

    def open(self, folder: Path) -> None:
        """List the folders inside a folder; an unreadable one leaves the list as it is."""
        try:
            entries = [Path(e.path) for e in os.scandir(folder) if e.is_dir() and not e.name.startswith(".")]
        except OSError:
            self.entry.mark_invalid(True)
            return
        self.entry.mark_invalid(False)
        self.folder = folder.resolve()
        self.path.set(str(self.folder))
        self._folders = sorted(entries, key=lambda p: p.name.lower())
        deadline = time.perf_counter() + _COUNTING_SECONDS
        self.table.set_rows([(f"  {p.name}", (_count_images(p, deadline),), "") for p in self._folders])
        self.table.tree.selection_set(())

    def _typed(self, _event: object) -> str:
        self.open(Path(self.path.get()).expanduser())
        return "break"

    def _enter_selected(self) -> None:
        if self.table.selected:
            self.open(self._folders[self.table.selected[0]])

    def _go_up(self) -> None:
        self.open(self.folder.parent)


def _count_images(folder: Path, deadline: float) -> str:
    """Return the number of images directly in a folder; empty for none, or at the deadline."""
    number = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                number += Path(entry.name).suffix.lower() in SUFFIXES
                if time.perf_counter() > deadline:
                    return ""
    except OSError:
        return ""
    return f"{number:,}" if number else ""
