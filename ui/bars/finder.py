"""A small window that searches settings while the user types, and opens the chosen one."""

from __future__ import annotations

from ui.context import Context
from ui.lookup import Match, find_fields
from ui.widgets.search_window import Rows, SearchWindow
from ui.widgets.table import Column

_SIZE = (560, 420)
_COLUMNS = (Column("#0", "Setting", 240), Column("place", "Where", 280, is_stretched=True))


class Finder(SearchWindow):
    """Finds settings, and choices of theirs."""

    def __init__(self, context: Context) -> None:
        self.matches: list[Match] = []
        self._context = context
        super().__init__(
            context.root,
            context.theme,
            "Find a setting",
            _COLUMNS,
            hint="Search names and descriptions",
            search=self._find,
            take=lambda index: context.navigation.go_to(self.matches[index].path),
        )
        self.show(*_SIZE)

    def _find(self, text: str) -> Rows:
        self.matches = find_fields(self._context.form.config, text)
        return [(f" {m.label}", (m.place,), "") for m in self.matches]
