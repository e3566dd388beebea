"""A window to choose one of several, such as a method: each with a sentence about it, searched while typing."""

from __future__ import annotations

from collections.abc import Callable

from modules.settings.field import FieldRecord
from ui.forms.binding import first_sentence
from ui.forms.context import Context
from ui.forms.records import available_choices, name_of
from ui.widgets.search_window import Rows, SearchWindow
from ui.widgets.table import Column

_WIDTH, _MAX_HEIGHT = 960, 600
_AROUND, _ROW = 140, 30


class Chooser(SearchWindow):
    """Lists the choices of a field in their order; a click or Return chooses.

    Names that explain nothing stand behind their sentence; others, which people look for, before it.
    """

    is_single = True

    def __init__(self, context: Context, record: FieldRecord, choose: Callable[[str], object]) -> None:
        current = name_of(context.form.value(record.path))
        self.names: list[str] = []
        self._choices = {
            name: (label, about(record, name)) for name, label in available_choices(record, current).items()
        }
        self._name_is_last = bool(record.setting.choice_help or (record.variants and record.choice_help))
        heading = "What it does" if self._name_is_last else "About"
        names, sentences = (record.label, 200, False), (heading, 680, True)
        first, second = (sentences, names) if self._name_is_last else (names, sentences)
        super().__init__(
            context.root,
            context.theme,
            f"Choose: {record.label}",
            tuple(
                Column(name, heading, width, is_stretched=is_long, is_fitted=is_long)
                for name, (heading, width, is_long) in (("#0", first), ("second", second))
            ),
            hint="Search names and descriptions",
            search=self._find,
            take=lambda index: choose(self.names[index]),
        )
        self.table.on_events({"<ButtonRelease-1>": self.go})
        self.show(_WIDTH, min(_MAX_HEIGHT, _AROUND + _ROW * len(self._choices)))
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
        if self._name_is_last:
            return [(f" {line}", (label,), "") for _, label, line in matches]
        return [(f" {label}", (line,), "") for _, label, line in matches]


def about(record: FieldRecord, name: str) -> str:
    """Return the first sentence about a choice; empty for one that has none."""
    section = record.variants.get(name) if name not in record.choice_help else None
    text = (section.__doc__ or "").strip() if section else record.choice_help.get(name, "")
    return first_sentence(text.partition("\n")[0])
