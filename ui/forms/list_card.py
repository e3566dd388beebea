"""A list of the config in a card: a table of its entries with buttons and keys to add, edit, copy, move and remove."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel

from ui.forms import items
from ui.forms.context import Context
from ui.widgets.card import Card
from ui.widgets.controls import Button
from ui.widgets.panel import Panel
from ui.widgets.table import WIDTH, Column, SwitchImages, Table
from ui.widgets.theme import GAP

SWITCH_FIELD = "enabled"
ON, OFF = "●", "○"
RowOf = Callable[[int, Any], tuple[str, Sequence[str], str]]


class ListCard:
    """The entries of the list at a path; `row_of` returns the row of an entry, `edit` opens its editor.

    With `has_switches` each row begins with a switch that enables or disables its entry.
    """

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        path: str,
        columns: Sequence[Column],
        *,
        title: str,
        row_of: RowOf,
        edit: Callable[[int], object],
        before_change: Callable[[], object],
        has_switches: bool,
        empty_text: str,
    ) -> None:
        self.path = path
        self.card = Card(master, context.theme, title)
        self.buttons: dict[str, Button] = {}
        self._context = context
        self._row_of = row_of
        self._edit = edit
        self._before_change = before_change
        self.toolbar = Panel(self.card.body, context.theme, "card")
        self.toolbar.pack(fill="x", padx=(context.theme.px(12), 0), pady=(0, context.theme.px(8)))
        self.table = Table(self.card.body, context.theme, columns, empty_text=empty_text)
        self.table.pack(fill="both", expand=True, padx=(context.theme.px(12), 0))
        self.table.on_events(
            {
                "<Return>": self.edit_selected,
                "<Delete>": self.remove_selected,
                "<space>": self.toggle_selected,
                "<<TreeviewSelect>>": self._enable_buttons,
            }
        )
        self.table.tree.bind("<Button-1>", self._on_click, add="+")
        self.table.tree.bind("<Double-Button-1>", self._on_double_click, add="+")
        self.table.tree.bind("<Control-a>", lambda _e: self.table.select(range(len(self.items))))
        self._switches = SwitchImages(self.table, context.theme) if has_switches else None
        context.form.watch(path, self.refresh)
        if has_switches:
            context.preferences.changed.subscribe(self._draw_switches)

    @property
    def items(self) -> tuple[BaseModel, ...]:
        """The entries."""
        return items.items_of(self._context.form, self.path)

    def add_button(self, name: str, label: str, command: Callable[[], object], tip: str) -> Button:
        """Add a button to the tool bar."""
        button = self.buttons[name] = self._context.buttons.add(self.toolbar, label, command, tip, on="card")
        return button

    def add_usual_buttons(self) -> None:
        """Add the buttons that every list has, or every list with switches."""
        self.add_button("edit", "Edit…", self.edit_selected, "Open the editor (Return, double click)")
        self.add_button("duplicate", "Duplicate", self.duplicate_selected, "Duplicate the selected entries")
        if self._switches is not None:
            tip = "Enable or disable the selected entries (Space)"
            self.add_button("toggle", "On / off", self.toggle_selected, tip)
        self.add_button("remove", "Remove", self.remove_selected, "Remove the selected entries (Delete)")
        self.add_button("up", "↑", lambda: self.move_selected(-1), "Move up")
        self.add_button("down", "↓", lambda: self.move_selected(1), "Move down")
        self._enable_buttons()

    def refresh(self) -> None:
        """Update the table."""
        self.table.set_rows([self._row_of(index, item) for index, item in enumerate(self.items)])
        self._draw_switches()
        self._enable_buttons()

    def show_field(self, path: str, open_at: Callable[[int], bool]) -> bool:
        """Show the list, the entry at a path, or, by `open_at`, a field of that entry.

        Return whether the list has it.
        """
        index, _, inner = path.removeprefix(self.path).removeprefix(".").partition(".")
        if index.isdigit() and int(index) >= len(self.items):
            return False
        if index.isdigit():
            self.table.select([int(index)])
        if self.items or "add" not in self.buttons:
            self.table.tree.focus_set()
        else:
            self.buttons["add"].focus_set()  # which comes into view, also where the list is higher than it
        return open_at(int(index)) if index.isdigit() and inner else path.startswith(self.path)

    def add(self, new: Sequence[BaseModel]) -> list[int]:
        """Add entries, select them and return their indexes."""
        places = items.add(self._context.form, self.path, new)
        self.table.select(places)
        return places

    def edit_selected(self) -> None:
        """Open the editor of the first selected entry."""
        if self.table.selected:
            self._edit(self.table.selected[0])

    def duplicate_selected(self) -> None:
        """Duplicate each selected entry and select the copies."""
        if self.table.selected:
            self._before_change()
            self.table.select(items.duplicate(self._context.form, self.path, self.table.selected))

    def remove_selected(self) -> None:
        """Remove the selected entries; undo restores them."""
        selected = self.table.selected
        if selected:
            self._before_change()
            items.remove(self._context.form, self.path, selected)
            self.table.select([min(selected[0], len(self.items) - 1)])
            self._context.notify(f"Removed {len(selected)}. Ctrl+Z undoes it.")

    def toggle_selected(self) -> None:
        """Enable or disable the selected entries: the opposite of the first one's state."""
        selected = self.table.selected
        if selected and self._switches is not None:
            self._toggle(selected)

    def move_selected(self, by: int) -> None:
        """Move the first selected entry."""
        if self.table.selected:
            self._before_change()
            self.table.select([items.move(self._context.form, self.path, self.table.selected[0], by)])

    def _toggle(self, indices: Sequence[int]) -> None:
        is_on = bool(getattr(self.items[indices[0]], SWITCH_FIELD))
        items.change(self._context.form, self.path, indices, **{SWITCH_FIELD: not is_on})

    def _draw_switches(self) -> None:
        if self._switches is None:
            return
        for index, item in enumerate(self.items):
            self.table.set_image(index, self._switches.of(is_on=bool(getattr(item, SWITCH_FIELD))))

    def _is_switch(self, event: tk.Event[Any], column: str) -> bool:
        """Return whether a mouse event is on the switch of a row."""
        is_there = self._switches is not None and column == "#0"
        return is_there and event.x < self._context.theme.px(WIDTH + GAP)

    def _on_click(self, event: tk.Event[Any]) -> str | None:
        place = self.table.row_and_column_at(event)
        if place is not None and self._is_switch(event, place[1]):
            self._toggle([place[0]])
            return "break"
        return None

    def _on_double_click(self, event: tk.Event[Any]) -> str | None:
        """Edit the clicked entry; on its switch a double click is just two clicks."""
        place = self.table.row_and_column_at(event)
        if place is None:
            return None
        if self._is_switch(event, place[1]):
            return self._on_click(event)
        self._edit(place[0])
        return "break"

    def _enable_buttons(self) -> None:
        selected = self.table.selected
        for name in ("edit", "duplicate", "toggle", "remove", "up", "down"):
            if name in self.buttons:
                self.buttons[name].set_enabled(bool(selected))
