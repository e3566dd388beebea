"""A small window that searches settings while the user types, and opens the chosen one."""

from __future__ import annotations

from ui.context import Context
from ui.lookup import Match, find_fields
from ui.theme import PAD
from ui.widgets.dialog import Window
from ui.widgets.entry import Entry
from ui.widgets.table import Column, Table
from ui.widgets.variables import TextVar

_SIZE = (560, 420)
_COLUMNS = (Column("#0", "Setting", 240), Column("place", "Where", 280, is_stretched=True))


class Finder(Window):
    """Type to search; Up and Down select; Return opens."""

    def __init__(self, context: Context) -> None:
        super().__init__(context.root, context.theme, "Find a setting")
        self.text = TextVar(master=self)
        self.matches: list[Match] = []
        self._context = context
        px = context.theme.px
        self.entry = Entry(self, context.theme, self.text, on="window", placeholder="Search names and descriptions")
        self.entry.pack(fill="x", padx=PAD, pady=(PAD, 10))
        self.table = Table(self, context.theme, _COLUMNS)
        self.table.tree.configure(selectmode="browse")
        self.table.pack(fill="both", expand=True, padx=px(PAD), pady=(0, px(PAD)))
        self.table.on_events({"<Return>": self.go, "<Double-Button-1>": self.go})
        inner = self.entry.tk_entry
        inner.bind("<Return>", lambda _e: self.go(), add="+")
        inner.bind("<Down>", lambda _e: self._move(1), add="+")
        inner.bind("<Up>", lambda _e: self._move(-1), add="+")
        self.text.trace_add("write", lambda *_: self._look())
        self._look()
        self.appear(*_SIZE)
        inner.focus_set()

    def go(self) -> None:
        """Close, and show the field that is selected."""
        chosen = self.table.selected
        if chosen:
            path = self.matches[chosen[0]].path
            self.close()
            self._context.navigation.go_to(path)

    def _look(self) -> None:
        self.matches = find_fields(self._context.form.config, self.text.get())
        self.table.set_rows([(f" {m.label}", (m.place,), "") for m in self.matches])
        self.table.select([0])

    def _move(self, by: int) -> str:
        if self.matches:
            chosen = self.table.selected[0] if self.table.selected else 0
            self.table.select([min(len(self.matches) - 1, max(0, chosen + by))])
        return "break"
