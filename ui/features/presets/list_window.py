"""The presets as a list that is searched while typing."""

from __future__ import annotations

from collections.abc import Callable

from modules.config.presets import Preset
from ui.features.presets.model import PresetRow, first_line, matching, preset_groups, preset_rows
from ui.forms.context import Context
from ui.widgets.search_window import Rows, SearchWindow
from ui.widgets.table import Column

_SIZE = (940, 560)
_COLUMNS = (
    Column("#0", "Preset", 260),
    Column("trains", "Trains", 100),
    Column("memory", "Card", 70),
    Column("about", "About", 480, is_stretched=True),
)


class PresetList(SearchWindow):
    """All presets with what they are for; a click or Return chooses one."""

    def __init__(self, context: Context, choose: Callable[[Preset], object]) -> None:
        groups = preset_groups(context.documents.presets())
        self.rows = [PresetRow(preset, None) for group in groups for preset in group.presets]
        self.found: list[PresetRow] = []
        super().__init__(
            context.root,
            context.theme,
            "Choose a preset",
            _COLUMNS,
            hint="Search, for example: lora 8 GB",
            search=self._find,
            take=lambda index: choose(self.found[index].preset),
        )
        self.table.on_events({"<ButtonRelease-1>": self.go})
        self.show(*_SIZE)
        presets = [row.preset for row in self.rows]
        context.pump.background.run(lambda: preset_rows(presets), self._know)

    def _know(self, rows: list[PresetRow]) -> None:
        """Show what the presets are for, which takes a moment to read."""
        if self.winfo_exists():
            self.rows = rows
            chosen = self.table.selected
            self.look()
            self.table.select(chosen)

    def _find(self, text: str) -> Rows:
        words = text.casefold().split()
        found = matching(self.rows, text)
        self.found = sorted(found, key=lambda r: not all(w in f"{r.preset.name} {r.trains}".casefold() for w in words))
        return [(f" {r.preset.name}", (r.trains, r.memory, r.problem or first_line(r.notes)), "") for r in self.found]


def open_preset_list(context: Context, choose: Callable[[Preset], object]) -> PresetList:
    """Open the list of presets; one that is already open is closed."""
    for old in [w for w in context.root.winfo_children() if isinstance(w, PresetList)]:
        old.close()
    return PresetList(context, choose)
