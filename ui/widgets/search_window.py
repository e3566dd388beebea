"""A small window with a list that is searched while the user types."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence

from ui.widgets.dialog import Window
from ui.widgets.entry import Entry
from ui.widgets.table import Column, Table
from ui.widgets.theme import PAD, Theme
from ui.widgets.variables import TextVar

_PAGE = 10  # rows
Rows = Sequence[tuple[str, Sequence[str], str]]


class SearchWindow(Window):
    """Type to search; Up, Down, Page Up and Page Down select; Return takes the selected row.

    `search(text)` returns the rows as `Table.set_rows` takes them, `take(index)` receives the number of a row.
    """

    def __init__(
        self,
        root: tk.Misc,
        theme: Theme,
        title: str,
        columns: Sequence[Column],
        *,
        hint: str,
        search: Callable[[str], Rows],
        take: Callable[[int], object],
    ) -> None:
        super().__init__(root, theme, title)
        self.text = TextVar(master=self)
        self._search, self._take = search, take
        self._num_rows = 0
        px = theme.px
        self.entry = Entry(self, theme, self.text, on="window", placeholder=hint)
        self.entry.pack(fill="x", padx=PAD, pady=(PAD, 10))
        self.table = Table(self, theme, columns)
        self.table.tree.configure(selectmode="browse")
        self.table.pack(fill="both", expand=True, padx=px(PAD), pady=(0, px(PAD)))
        self.table.on_events({"<Return>": self.go, "<Double-Button-1>": self.go})
        inner = self.entry.tk_entry
        inner.bind("<Return>", lambda _e: self.go(), add="+")
        inner.bind("<Down>", lambda _e: self._move(1), add="+")
        inner.bind("<Up>", lambda _e: self._move(-1), add="+")
        inner.bind("<Next>", lambda _e: self._move(_PAGE), add="+")
        inner.bind("<Prior>", lambda _e: self._move(-_PAGE), add="+")
        self.text.trace_add("write", lambda *_: self.look())

    def look(self) -> None:
        """Search, and select the first row."""
        rows = self._search(self.text.get())
        self._num_rows = len(rows)
        self.table.set_rows(rows)
        self.table.select([0])

    def show(self, width_px: int, height_px: int) -> None:
        """Appear with all rows, ready to type."""
        self.look()
        self.appear(width_px, height_px)
        self.entry.tk_entry.focus_set()

    def go(self) -> None:
        """Close, and take the selected row."""
        chosen = self.table.selected
        if chosen:
            self.close()
            self._take(chosen[0])

    def _move(self, by: int) -> str:
        if self._num_rows:
            chosen = self.table.selected[0] if self.table.selected else 0
            self.table.select([min(self._num_rows - 1, max(0, chosen + by))])
        return "break"
