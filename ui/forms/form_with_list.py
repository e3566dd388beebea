"""A page with a form and a list of items, and the window that edits an item."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from modules.config.records import inner_records
from modules.config.schema import Config
from modules.settings.field import Section
from ui.forms.context import Context
from ui.forms.form_page import FormPage
from ui.forms.layout import FormView
from ui.forms.list_card import SWITCH_FIELD, ListCard
from ui.forms.records import Group
from ui.forms.setting_pages import PageSpec, groups_on
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.panel import call_later
from ui.widgets.scroll import ScrollFrame
from ui.widgets.table import Column
from ui.widgets.theme import PAD

_LIST_HEIGHT = 340  # of a list with some entries
_WIDE_FROM_PX = 1300  # of the page
_MAX_CARDS_WITH_LIST = 2  # of the form, next to the list
Row = tuple[str, Sequence[str], str]


@dataclass(frozen=True, slots=True)
class ListSpec:
    """The list at a path: its title, columns, add button and entry type.

    `row_of(entry, config)` returns the row of an entry, `new(present, config)` a new entry. The list is shown while
    `applies(config)` is true, `empty_text` while it has no entries. A change of the value at a path in `depends_on`
    refreshes the list.
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
    empty_text: str = ""
    depends_on: tuple[str, ...] = ()
    applies: Callable[[Config], bool] = lambda config: True


class FormWithList(FormPage):
    """The form above, the list below; `lead` returns a card above both."""

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        spec: PageSpec,
        entries: ListSpec,
        lead: Callable[[tk.Misc, Context], tk.Widget] | None = None,
    ) -> None:
        self.editor: ItemEditor | None = None
        self._entries = entries
        self._is_wide = self._is_placed = False
        super().__init__(master, context, spec, lead)
        form = context.form
        self.scroll.body.rowconfigure(2, weight=1)  # a list next to the form is higher than it
        self.list = ListCard(
            self.scroll.body,
            context,
            entries.path,
            entries.columns,
            title=entries.title,
            row_of=lambda _index, entry: entries.row_of(entry, form.config),
            edit=self.edit,
            before_change=self._close_editor,
            has_switches=SWITCH_FIELD in entries.item_type.model_fields,
            empty_text=entries.empty_text,
        )
        self._place_list()
        self.list.add_button("add", entries.add_label, self.add, entries.add_tip)
        self.list.add_usual_buttons()
        for path in entries.depends_on:
            form.watch(path, self._follow)
        self._follow()

    def show_field(self, path: str) -> bool:
        """Show a field of the form, the list, or a field in the editor of an entry."""
        if not path.startswith(self._entries.path):
            return super().show_field(path)
        self.list.card.grid()  # also where it does not apply
        self.form_view.finish()  # rows that are still to be built would move the list
        self.form_view.once_placed(self._see_list)
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

    def _see_list(self) -> None:
        self._arrange()
        self.scroll.see(self.list.card)

    def _form_room(self) -> int:
        return super()._form_room() - (0 if self._is_wide else self._context.theme.px(_LIST_HEIGHT))

    def _arrange(self) -> None:
        """Put the list next to a short form if the page is wide, and name below the form what it hides."""
        num_cards = sum(1 for card in self.form_view.cards if card.num_rows_shown())
        applies = self._entries.applies(self._context.form.config)
        is_wide = self.scroll.body.winfo_width() >= self._context.theme.px(_WIDE_FROM_PX)
        is_wide = is_wide and applies and 0 < num_cards <= _MAX_CARDS_WITH_LIST
        if is_wide != self._is_wide:
            self._is_wide = is_wide
            self._place_list()
        room = self._form_room() - self.form_view.winfo_reqheight()
        groups = groups_on(self._spec, self._context.form.config)
        if is_wide and self.more.follow(self.form_view, groups, room):
            tk.Grid.grid_configure(self.more, row=2, column=0, sticky="new", pady=self._gap)
        else:
            self.more.grid_remove()

    def _place_list(self) -> None:
        """Place the list next to the form, or below it."""
        px, body = self._context.theme.px, self.scroll.body
        for column, weight in enumerate((2, 3) if self._is_wide else (1, 0)):
            body.columnconfigure(column, weight=weight, uniform="wide" if self._is_wide else "")
        place: dict[str, Any] = (
            {"row": 1, "column": 1, "rowspan": 2} if self._is_wide else {"row": 2, "column": 0, "rowspan": 1}
        )
        left = px(PAD) if self._is_wide else 0
        is_hidden = not self.list.card.winfo_manager() and self._is_placed
        tk.Grid.grid_configure(self.list.card, sticky="new", padx=(left, 0), pady=self._gap, **place)
        if is_hidden:
            self.list.card.grid_remove()
        self._is_placed = True

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


class ItemEditor(Window):
    """Edits the entry at a path of the config. Edits apply at once and can be undone."""

    def __init__(self, context: Context, path: str, title: str, kind: type[Section]) -> None:
        super().__init__(context.root, context.theme, title)
        self.path = path
        self._context = context
        self._list_path = path.rpartition(".")[0]
        self._num_items = len(context.form.value(self._list_path))
        px = context.theme.px
        Button(self, context.theme, "Close", self.close).pack(side="bottom", anchor="e", padx=PAD, pady=(0, PAD))
        scroll = ScrollFrame(self, context.theme)
        scroll.pack(fill="both", expand=True, padx=(px(PAD), 0), pady=(px(PAD), 0))
        scroll.body.columnconfigure(0, weight=1)
        group = Group(path, title, inner_records(kind, path))
        self.form_view = FormView(scroll.body, context, lambda: (group,), max_columns=1)
        self.form_view.grid(row=0, column=0, sticky="new")
        self.form_view.build()
        self.at_close(context.form.watch(self._list_path, self._follow))
        self.appear(560, 620)
        if (text := _first_text(scroll.body)) is None:
            self.form_view.finish()  # the page below it may have used up the time in which its first rows are built
            text = _first_text(scroll.body)
        if text is not None:
            text.focus_set()  # such as the prompt of a sample that was just added

    def show_field(self, path: str) -> bool:
        """Show a field."""
        return self.form_view.reveal(path) is not None

    def _follow(self) -> None:
        if len(self._context.form.value(self._list_path)) != self._num_items:
            call_later(self, 0, self.close)  # not `after_idle`: a control that is being built might run that


def _first_text(master: tk.Misc) -> tk.Misc | None:
    """Return the first text field inside."""
    for child in master.winfo_children():
        text = child if isinstance(child, tk.Text | tk.Entry) else _first_text(child)
        if text is not None:
            return text
    return None
