"""The Rewards page: the method, how it follows a reward, and the list of who judges."""

from __future__ import annotations

import tkinter as tk

from modules.config.sections.reward import Scorer
from modules.rewards.registry import REWARDS
from ui.context import Context
from ui.editors.item import ItemEditor
from ui.forms.layout import FormView
from ui.pages.catalogue import PageSpec, groups_on
from ui.pages.list_card import ENABLED_COLUMN, OFF, ON, ListCard
from ui.pages.page import PageFrame
from ui.theme import PAD
from ui.widgets.table import Column

PATH = "reward.scorers"
_COLUMNS = (
    Column("#0", "Judge", 220, is_stretched=True),
    Column(ENABLED_COLUMN, "On", 44, "center"),
    Column("weight", "Weight", 70),
    Column("scale", "Rates from", 220),
    Column("needs", "Needs", 260, is_stretched=True),
)


class RewardsPage:
    """A form of the method and the measurements, and the table of judges below it."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self.scroll = self.frame.add_scroll(context)
        self.editor: ItemEditor | None = None
        self._context = context
        form = context.form
        self.form_view = FormView(self.scroll.body, context, lambda: groups_on(spec, form.config))
        self.form_view.grid(row=0, column=0, sticky="new")
        self.form_view.build()
        self.list = ListCard(
            self.scroll.body,
            context,
            PATH,
            _COLUMNS,
            title="Judges",
            row_of=self._row_of,
            edit=self.edit,
            before_change=self._close_editor,
        )
        tk.Grid.grid_configure(self.list.card, row=1, column=0, sticky="nsew", pady=(0, context.theme.px(PAD)))
        self.list.add_button("add", "Add judge", self.add, "Add somebody who rates the painted pictures")
        self.list.add_usual_buttons()
        self.list.refresh()
        # Whether a judge is followed or only watched hangs on the method.
        form.watch("training.method", self.list.refresh)

    def shown(self) -> None:
        """A form follows the config whether it is seen or not."""

    def hidden(self) -> None:
        """A form follows the config whether it is seen or not."""

    def show_field(self, path: str) -> bool:
        """Lead the user to a field of the form, to the list, or into the editor of a judge."""
        if not path.startswith(PATH):
            row = self.form_view.reveal(path)
            if row is not None:
                self.scroll.see(row.control.frame)
            return row is not None
        self.scroll.see(self.list.card)
        return self.list.show_field(path, lambda index: self.edit(index).show_field(path))

    def add(self) -> None:
        """Add a judge, at first one that needs no file, and open its editor."""
        self.edit(self.list.add([Scorer(kind="brightness")])[0])

    def edit(self, index: int) -> ItemEditor:
        """Open the editor of a judge."""
        self._close_editor()
        self.editor = ItemEditor(self._context, f"{PATH}.{index}", "Judge", Scorer)
        return self.editor

    def _close_editor(self) -> None:
        if self.editor is not None and self.editor.winfo_exists():
            self.editor.close()
        self.editor = None

    def _row_of(self, _index: int, scorer: Scorer) -> tuple[str, tuple[str, ...], str]:
        spec = REWARDS[scorer.kind]
        is_held_out = getattr(self._context.form.config.training.method, "hold_out", "none") == scorer.kind
        label = f" {spec.label}{' (only watched)' if is_held_out else ''}"
        values = (ON if scorer.enabled else OFF, f"{scorer.weight:g}", spec.scale, needs_of(scorer))
        return label, values, "" if scorer.enabled else "faint"


def needs_of(scorer: Scorer) -> str:
    """Return what a judge needs beside the program: its own files, those that are published, or nothing."""
    if scorer.kind == "user_code":
        return scorer.file or "a file and a function"
    needs = []
    for file in REWARDS[scorer.kind].files:
        own = getattr(scorer, file.slot)
        needs.append(own or f"{file.repo} ({file.size_words})")
    return ", ".join(needs) or "nothing"
