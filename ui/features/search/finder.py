"""A small window that searches settings, commands and pages while the user types, and opens the chosen one."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.imports.other_names import OtherName, other_names
from ui.features.search.model import Index, Match
from ui.forms.context import Context
from ui.widgets.panel import Text
from ui.widgets.search_window import Rows, SearchWindow
from ui.widgets.table import Column
from ui.widgets.theme import PAD

_SIZE = (760, 460)
_COLUMNS = (
    Column("#0", "Name", 230, is_fitted=True),
    Column("place", "Where", 290, is_fitted=True),
    Column("note", "Note", 190, is_stretched=True, is_fitted=True),
)
_KEYS = "Up and Down select, Return opens, Escape closes. It also finds the names of OneTrainer and kohya."

_LEFT_OUT = ("find", "save_as", "presets")  # this window, and menus of the top bar


class Finder(SearchWindow):
    """Finds settings, options of theirs, the names that other programs have for them, commands and pages."""

    is_single = True

    def __init__(self, context: Context) -> None:
        self.matches: tuple[Match, ...] = ()
        self._context = context
        self._actions = tuple(action for action in context.actions if action.name not in _LEFT_OUT)
        self._index = Index(context.form.config, actions=self._actions)
        super().__init__(
            context.root,
            context.theme,
            "Find",
            _COLUMNS,
            hint="Search settings, commands and pages",
            search=self._find,
            take=lambda index: self._open(self.matches[index]),
        )
        self.foot = Text(self, context.theme, _KEYS, role="small", colour="muted")
        self.foot.pack(side="bottom", anchor="w", padx=context.theme.px(PAD), pady=(0, context.theme.px(10)))
        self.show(*_SIZE)
        # Found by converting each key, which takes a moment the first time.
        self.at_close(context.pump.background.run(other_names, self._use_names).cancel)

    def _use_names(self, names: Mapping[str, tuple[OtherName, ...]]) -> None:
        self._index = Index(self._context.form.config, names, self._actions)
        self.look()

    def _find(self, text: str) -> Rows:
        result = self._index.find(text)
        self.matches = result.matches
        if hasattr(self, "foot"):
            nearest = "These are the nearest." if result.matches else "Try another word."
            self.foot.set_text(f"Nothing found for “{text.strip()}”. {nearest}" if result.is_nearest else _KEYS)
        return [(f" {m.label}", (m.place, m.note), "") for m in self.matches]

    def _open(self, match: Match) -> None:
        if match.action:
            self._context.actions.run(match.action)
            return
        self._context.navigation.go_to(match.opens)
        if match.note:
            self._context.notify(f"{match.label}: {match.note}.")
