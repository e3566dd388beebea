"""The advanced settings that a page hides, named below its form where there is room; a click shows one."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from modules.config.schema import Config
from modules.settings.field import FieldRecord
from modules.system.problem import count
from ui.forms.context import Context
from ui.forms.layout import FormView
from ui.forms.records import Group, records_beside
from ui.forms.tips import explanation
from ui.forms.visibility import is_shown
from ui.widgets.card import Card
from ui.widgets.controls import Button
from ui.widgets.link_columns import Link, LinkColumns
from ui.widgets.panel import Text
from ui.widgets.theme import PAD

_MIN_COLUMN_PX = 400
_AROUND_PX = 78  # the heading, the margins, and the distance to the end of the page


@dataclass(frozen=True, slots=True)
class HiddenGroup:
    """The hidden fields under a heading."""

    title: str
    links: tuple[Link, ...]


def hidden_groups(config: Config, groups: Iterable[Group], shown: Iterable[str]) -> tuple[HiddenGroup, ...]:
    """Return the advanced fields that apply and are not among the paths in `shown`, by group."""
    visible, found = set(shown), []
    for group in groups:
        records = [r for record in group.records for r in (record, *_of_variant(config, record))]
        links = tuple(
            Link(record.path, record.label, explanation(record))
            for record in records
            if record.path not in visible and is_shown(config, record, show_advanced=True)
        )
        if links:
            found.append(HiddenGroup(group.title, links))
    return tuple(found)


def _of_variant(config: Config, record: FieldRecord) -> tuple[FieldRecord, ...]:
    return records_beside(config, record) if record.kind == "section" else ()


class MoreSettings(Card):
    """Call `follow` when the page, its form or the window changes; a click on a field calls `open_field(path)`."""

    def __init__(self, master: tk.Misc, context: Context, open_field: Callable[[str], object]) -> None:
        super().__init__(master, context.theme)
        self._context = context
        self._shown: tuple[object, ...] = ()
        self._fits = False
        px, body = context.theme.px, self.body
        body.columnconfigure(0, weight=1)
        self.title = Text(body, context.theme, role="heading", on="card")
        self.title.grid(row=0, column=0, sticky="w", padx=(px(12), 0))
        self.button = Button(body, context.theme, "Show all", self._show_all, on="card", height=26)
        self.button.grid(row=0, column=1, sticky="e")
        self.links = LinkColumns(body, context.theme, open_field, min_column_px=_MIN_COLUMN_PX)
        self.links.grid(row=1, column=0, columnspan=2, sticky="ew", padx=(px(12), 0), pady=(px(6), 0))
        context.tips.attach(self.button, lambda: "Show the advanced settings of all pages")

    def follow(self, form: FormView, groups: Iterable[Group], room: int) -> bool:
        """Name what a form hides of its groups, in the height `room` that is left below it; return whether it fits."""
        width = form.winfo_width()
        if not form.is_complete or width <= 1:
            return self._fits
        shown = {row.record.path for row in form.rows() if row.is_shown}
        hidden = hidden_groups(self._context.form.config, groups, shown)
        if (hidden, width, room) != self._shown:
            self._shown = (hidden, width, room)
            self._fits = bool(hidden) and self._fit(hidden, width, room)
        return self._fits

    def _fit(self, hidden: Sequence[HiddenGroup], width: int, room: int) -> bool:
        px = self._context.theme.px
        number = sum(len(group.links) for group in hidden)
        self.title.set_text(f"{count(number, 'more setting')}, at the default")
        return self.links.show([(g.title, g.links) for g in hidden], width - px(2 * PAD), room - px(_AROUND_PX))

    def _show_all(self) -> None:
        self._context.preferences.change(show_advanced=True)
