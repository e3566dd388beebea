"""A page with a form of some sections, and below it a list of the config whose entries have an editor of their own."""

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
from ui.pages.list_card import ListCard
from ui.pages.page import PageFrame
from ui.theme import PAD
from ui.widgets.table import Column

Row = tuple[str, Sequence[str], str]


@dataclass(frozen=True, slots=True)
class ListSpec:
    """The list at a path: its title, its columns, what the button that adds says, and what an entry is.

    `row_of(entry, config)` is what the table shows of one, `new(present, config)` the one that is added to the present
    ones. A row that hangs on something else than its entry is shown anew where what lies at `hangs_on` changes.
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
    hangs_on: str = ""


class FormWithList:
    """The form above, the list below; a field is led to in either, or in the editor of an entry."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec, entries: ListSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self.scroll = self.frame.add_scroll(context)
        self.editor: ItemEditor | None = None
        self._context = context
        self._entries = entries
        form = context.form
        self.form_view = FormView(self.scroll.body, context, lambda: groups_on(spec, form.config))
        self.form_view.grid(row=0, column=0, sticky="new")
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
        )
        tk.Grid.grid_configure(self.list.card, row=1, column=0, sticky="nsew", pady=(0, context.theme.px(PAD)))
        self.list.add_button("add", entries.add_label, self.add, entries.add_tip)
        self.list.add_usual_buttons()
        self.list.refresh()
        if entries.hangs_on:
            form.watch(entries.hangs_on, self.list.refresh)

    def shown(self) -> None:
        """A form follows the config whether it is seen or not."""

    def hidden(self) -> None:
        """A form follows the config whether it is seen or not."""

    def show_field(self, path: str) -> bool:
        """Lead the user to a field of the form, to the list, or into the editor of an entry."""
        if not path.startswith(self._entries.path):
            row = self.form_view.reveal(path)
            if row is not None:
                self.scroll.see(row.control.frame)
            return row is not None
        self.scroll.see(self.list.card)
        return self.list.show_field(path, lambda index: self.edit(index).show_field(path))

    def add(self) -> None:
        """Add an entry and open its editor."""
        self.edit(self.list.add([self._entries.new(self.list.items, self._context.form.config)])[0])

    def edit(self, index: int) -> ItemEditor:
        """Open the editor of an entry; the one that is open goes."""
        self._close_editor()
        entries = self._entries
        self.editor = ItemEditor(self._context, f"{entries.path}.{index}", entries.item_name, entries.item_type)
        return self.editor

    def _close_editor(self) -> None:
        if self.editor is not None and self.editor.winfo_exists():
            self.editor.close()
        self.editor = None
