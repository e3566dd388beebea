"""A page with a form of some sections and, below it, a list whose entries have their own editor."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from modules.config.schema import Config
from modules.settings.field import Section
from ui.context import Context
from ui.editors.item import ItemEditor
from ui.forms.layout import FormView
from ui.pages.catalogue import PageSpec, groups_on
from ui.pages.list_card import ENABLED_COLUMN, ListCard
from ui.pages.page import PageFrame, form_room
from ui.theme import PAD
from ui.widgets.table import Column

_LIST_HEIGHT = 340  # of a list with some entries
Row = tuple[str, Sequence[str], str]


@dataclass(frozen=True, slots=True)
class ListSpec:
    """The list at a path: its title, columns, add button and entry type.

    `row_of(entry, config)` returns the row of an entry, `new(present, config)` a new entry. Rows that depend on another
    setting are refreshed when the value at `depends_on` changes; the list is shown while
    `applies(config)` is true.
    """

    path: str
    title: str
    columns: tuple[Column, ...]
    add_label: str
    add_tip: str
    item_name: str
    item_type: type[Section]
    row_of: Callable[[Any, Config], Row]
    new: Callable[[Sequence[Any], Config], Section]
    depends_on: str = ""
    applies: Callable[[Config], bool] = lambda config: True


class FormWithList:
    """The form above, the list below; `lead` returns a card above both."""

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        spec: PageSpec,
        entries: ListSpec,
        lead: Callable[[tk.Misc, Context], tk.Misc] | None = None,
    ) -> None:
        self.frame = PageFrame(master, context, spec)
        self.scroll = self.frame.add_scroll(context)
        self.editor: ItemEditor | None = None
        self._context = context
        self._entries = entries
        form = context.form
        gap = (0, context.theme.px(PAD))
        if lead is not None:
            tk.Grid.grid_configure(lead(self.scroll.body, context), row=0, column=0, sticky="new", pady=gap)
        self.form_view = FormView(
            self.scroll.body,
            context,
            lambda: groups_on(spec, form.config),
            empty_note=spec.empty_note,
            room=lambda: form_room(context) - context.theme.px(_LIST_HEIGHT),
        )
        self.form_view.grid(row=1, column=0, sticky="new")
        self.form_view.build()
        self.list = ListCard(
            self.scroll.body,
            context,
            entries.path,
            entries.columns,
            title=entries.title,
            row_of=lambda _index, entry: entries.row_of(entry, form.config),
            edit=self.edit,
            before_change=self._close_editor,
            has_switches=ENABLED_COLUMN in entries.item_type.model_fields,
        )
        tk.Grid.grid_configure(self.list.card, row=2, column=0, sticky="nsew", pady=gap)
        self.list.add_button("add", entries.add_label, self.add, entries.add_tip)
        self.list.add_usual_buttons()
        if entries.depends_on:
            form.watch(entries.depends_on, self._follow)
        self._follow()

    def shown(self) -> None:
        """Do nothing: a form follows the config even while hidden."""

    def hidden(self) -> None:
        """Do nothing: a form follows the config even while hidden."""

    def show_field(self, path: str) -> bool:
        """Show a field of the form, the list, or a field in the editor of an entry."""
        if not path.startswith(self._entries.path):
            row = self.form_view.reveal(path)
            if row is not None:
                self.scroll.see(row.control.frame)
            return row is not None
        self.list.card.grid()  # also where it does not apply
        self.scroll.see(self.list.card)
        return self.list.show_field(path, lambda index: self.edit(index).show_field(path))

    def add(self) -> None:
        """Add an entry and open its editor."""
        self.edit(self.list.add([self._entries.new(self.list.items, self._context.form.config)])[0])

    def edit(self, index: int) -> ItemEditor:
        """Open the editor of an entry; one that is already open is closed."""
        self._close_editor()
        entries = self._entries
        self.editor = ItemEditor(self._context, f"{entries.path}.{index}", entries.item_name, entries.item_type)
        return self.editor

    def _follow(self) -> None:
        self.list.refresh()
        if self._entries.applies(self._context.form.config):
            self.list.card.grid()
        else:
            self._close_editor()
            self.list.card.grid_remove()

    def _close_editor(self) -> None:
        if self.editor is not None and self.editor.winfo_exists():
            self.editor.close()
        self.editor = None
