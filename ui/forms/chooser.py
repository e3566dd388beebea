"""A window to choose one of many, such as an optimizer: each with a line about it, searched while typing."""

from __future__ import annotations

from collections.abc import Callable

from modules.settings.field import FieldRecord
from ui.forms.context import Context
from ui.forms.visibility import available_choices, name_of
from ui.widgets.dialog import close_windows
from ui.widgets.search_window import Rows, SearchWindow
from ui.widgets.table import Column

_SIZE = (900, 600)


class Chooser(SearchWindow):
    """Lists the choices of a field in their order; a click or Return chooses."""

    def __init__(self, context: Context, record: FieldRecord, choose: Callable[[str], object]) -> None:
        current = name_of(context.form.value(record.path))
        self.names: list[str] = []
        self._choices = {
            name: (label, about(record, name)) for name, label in available_choices(record, current).items()
        }
        super().__init__(
            context.root,
            context.theme,
            f"Choose: {record.label}",
            (Column("#0", record.label, 190), Column("about", "About", 660, is_stretched=True)),
            hint="Search names and descriptions",
            search=self._find,
            take=lambda index: choose(self.names[index]),
        )
        self.table.on_events({"<ButtonRelease-1>": self.go})
        self.show(*_SIZE)
        self.table.select([self.names.index(current)])

    def _find(self, text: str) -> Rows:
        terms = text.lower().split()
        matches = [
            (name, label, line)
            for name, (label, line) in self._choices.items()
            if all(word in f"{label} {line}".lower() for word in terms)
        ]
        matches.sort(key=lambda entry: not all(word in entry[1].lower() for word in terms))
        self.names = [name for name, _, _ in matches]
        return [(f" {label}", (line,), "") for _, label, line in matches]


def about(record: FieldRecord, name: str) -> str:
    """Return the first line of a variant's description; empty for a plain choice."""
    section = record.variants.get(name)
    return (section.__doc__ or "").strip().partition("\n")[0] if section else ""


def open_chooser(context: Context, record: FieldRecord, choose: Callable[[str], object]) -> Chooser:
    """Open the window; one that is already open is closed."""
    close_windows(context.root, Chooser)
    return Chooser(context, record, choose)
