"""A card of a form: its rows, the menu that resets it, and the preview of what its values do."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from modules.config.records import is_reachable
from modules.settings.field import FieldRecord
from ui.forms.context import Context
from ui.forms.fields import Row
from ui.forms.records import Group, inline_records, is_default, is_shown
from ui.forms.values import display
from ui.widgets.card import Card
from ui.widgets.menu import make_menu
from ui.widgets.panel import Panel
from ui.widgets.theme import PAD

if TYPE_CHECKING:
    from ui.forms.preview import Preview

LABEL_WIDTH = 150
_PREVIEW_ROWS = 4  # the height of the preview, in rows of fields
_LINES_PER_RECORD = 40  # leaves room for the fields of a variant below its choice


class GroupCard:
    """A card and its rows by path."""

    def __init__(self, master: tk.Misc, context: Context, group: Group, *, has_all_levels: bool = False) -> None:
        self.group = group
        self.rows: dict[str, Row] = {}
        self.card = Card(master, context.theme, group.title)
        self.preview: Preview | None = None
        self._context = context
        self._has_all_levels = has_all_levels
        self._visible_paths: set[str] = set()  # shown since the level was last set; stays visible while it is edited
        self._linked_paths: set[str] = set()  # opened by a link
        self._is_explained = False
        body = self.card.body
        body.columnconfigure(1, minsize=context.theme.px(LABEL_WIDTH))
        body.columnconfigure(2, weight=1)

    def build(self) -> Iterator[None]:
        """Create the rows, one per `next`."""
        for index, record in enumerate(self.group.records):
            self._add(record, index * _LINES_PER_RECORD)
            yield
            for line, inner in self._variant_lines(index, record):
                self._add(inner, line, is_inner=True)
                yield
        preview_field = next(((i, r) for i, r in enumerate(self.group.records) if r.setting.preview), None)
        if preview_field is not None:
            from ui.forms.preview import Preview  # few cards have one, and the window starts without plots

            index, record = preview_field
            next_index = index + 1 if record.kind == "section" else len(self.group.records)
            line = (next_index * _LINES_PER_RECORD - 1) * 2  # a row has two lines: for its note
            self.preview = Preview(self.card.body, self._context, record.setting.preview, line=line)
            self._follow_preview()
            yield

    def update(self) -> None:
        """Show the relevant rows, with the fields of the chosen variants."""
        for index, record in enumerate(self.group.records):
            if record.kind == "section" and record.path in self.rows:
                self._renew_variant(index, record)
        for row in self.rows.values():
            row.set_shown(self._is_shown(row.record))
            if row.record.path in self._linked_paths:
                row.refresh()  # whether it applies may have changed
        self._follow_preview()

    def num_rows_shown(self) -> int:
        """Return the number of rows the card shows once built, with the height of its preview."""
        num_rows = len(self.records_shown())
        return num_rows + self.num_preview_rows if num_rows else num_rows

    @property
    def num_preview_rows(self) -> int:
        """The height of the preview, in rows."""
        return _PREVIEW_ROWS if any(record.setting.preview for record in self.group.records) else 0

    def records_shown(self) -> list[FieldRecord]:
        """Return the fields that the card shows once built."""
        return [record for record in self._records() if self._is_shown(record)]

    def explain(self, is_explained: bool) -> None:
        """Show or hide the explanations of the fields."""
        self._is_explained = is_explained
        for row in self.rows.values():
            row.explain(is_explained)

    def force(self, path: str) -> Row | None:
        """Show a field regardless of its level; return its row, if the card has it."""
        if path in self.rows:
            self._linked_paths.add(path)
            self.update()
        return self.rows.get(path)

    def show_by_level(self) -> None:
        """Hide again the fields that were shown beyond the level."""
        self._visible_paths.clear()
        self._linked_paths.clear()

    def place_in(self, column: Panel) -> None:
        """Pack the card at the end of a column."""
        gap = self._context.theme.px(PAD)
        tk.Pack.pack_configure(self.card, in_=column, fill="x", pady=(0, gap))
        self.card.lift()

    def close(self) -> None:
        """Unsubscribe from the model and destroy the card."""
        self.leave()
        for _ in self.destroy():
            pass

    def leave(self) -> None:
        """Unsubscribe from the model and hide the card; the widgets stay until they are destroyed."""
        for row in self.rows.values():
            row.leave()
        self.card.pack_forget()

    def destroy(self) -> Iterator[None]:
        """Destroy the widgets, one row per `next`, since a whole form takes a tenth of a second."""
        while self.rows:
            self.rows.popitem()[1].destroy()
            yield
        self.card.destroy()

    def _records(self) -> Iterator[FieldRecord]:
        for index, record in enumerate(self.group.records):
            yield record
            for _, inner in self._variant_lines(index, record):
                yield inner

    def _variant_lines(self, index: int, record: FieldRecord) -> Iterator[tuple[int, FieldRecord]]:
        """Yield the fields of the chosen variant with their grid lines, right below the choice."""
        if record.kind == "section":
            yield from enumerate(inline_records(self._context.form.config, record), index * _LINES_PER_RECORD + 1)

    def _follow_preview(self) -> None:
        """Draw the preview while any row is shown."""
        if self.preview is not None:
            self.preview.follow(is_shown=any(self._is_shown(record) for record in self._records()))

    def _is_shown(self, record: FieldRecord) -> bool:
        if record.path in self._linked_paths or self._context.form.draft(record.path) is not None:
            return True
        config = self._context.form.config
        show_advanced = self._has_all_levels or self._context.preferences.now.show_advanced
        if is_shown(config, record, show_advanced=show_advanced):
            self._visible_paths.add(record.path)
            return True
        return record.path in self._visible_paths and is_reachable(config, record)

    def _add(self, record: FieldRecord, line: int, *, is_inner: bool = False) -> None:
        row = Row(self.card.body, self._context, record, line, is_inner=is_inner)
        for target in row.tip_targets:
            self._context.tips.attach(target, row.tip)
        attach_reset_menu(row.menu_target, self._context, record)
        self.rows[record.path] = row
        row.explain(self._is_explained)
        row.set_shown(self._is_shown(record))

    def _renew_variant(self, index: int, record: FieldRecord) -> None:
        lines = list(self._variant_lines(index, record))
        inner_records = [row.record for path, row in self.rows.items() if path.startswith(record.path + ".")]
        if inner_records == [inner for _, inner in lines]:
            return
        for old in inner_records:
            self.rows.pop(old.path).close()
        for line, inner in lines:
            self._add(inner, line, is_inner=True)


def attach_reset_menu(label: tk.Misc, context: Context, record: FieldRecord) -> None:
    """Open the menu on a right click on the label."""

    def on_click(event: tk.Event[Any]) -> None:
        menu = reset_menu(label, context, record)
        menu.tk_popup(event.x_root, event.y_root)

    label.bind("<Button-3>", on_click, add="+")


def reset_menu(label: tk.Misc, context: Context, record: FieldRecord) -> tk.Menu:
    """Return the menu of a field; it is destroyed with the label, or when the next one is made."""
    form, path = context.form, record.path
    menu = make_menu(label, context.theme)
    has_draft = form.draft(path) is not None
    if form.was_loaded(path):
        menu.add_command(
            label=f"Reset to the loaded value: {display(record, form.loaded_value(path))}",
            command=lambda: form.reset(path, to="baseline"),
            state="normal" if form.differs(path) or has_draft else "disabled",
        )
    menu.add_command(
        label=f"Reset to the default: {display(record, record.default)}",
        command=lambda: form.reset(path, to="default"),
        state="normal" if has_draft or not is_default(form.config, record) else "disabled",
    )
    return menu
