"""A page that is a form of some sections of the config, with links to the settings that are hidden."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from modules.config.schema import Config
from modules.settings.field import FieldRecord
from modules.system.problem import count
from ui.forms.binding import explanation
from ui.forms.context import Context
from ui.forms.layout import FormView
from ui.forms.page import PageFrame, form_room
from ui.forms.records import Group, inline_records, is_shown
from ui.forms.setting_pages import PageSpec, groups_on
from ui.widgets.card import Card
from ui.widgets.controls import Button
from ui.widgets.link_columns import Link, LinkColumns
from ui.widgets.panel import Text
from ui.widgets.theme import PAD


class FormPage:
    """Model, Data, Training, Output: the fields of their sections.

    A page may have a card above its form, which `lead` makes.
    """

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        spec: PageSpec,
        lead: Callable[[tk.Misc, Context], tk.Widget] | None = None,
    ) -> None:
        self.frame = PageFrame(master, context, spec)
        self.scroll = self.frame.add_scroll(context)
        form = context.form
        self._context, self._spec = context, spec
        self._gap = (0, context.theme.px(PAD))
        if lead is not None:
            card = lead(self.scroll.body, context)
            tk.Grid.grid_configure(card, row=0, column=0, columnspan=2, sticky="new", pady=self._gap)
        self.form_view = FormView(
            self.scroll.body,
            context,
            lambda: groups_on(spec, form.config),
            empty_note=lambda: spec.empty_note(form.config),
            room=self._form_room,
        )
        self.form_view.grid(row=1, column=0, sticky="new")
        self.more = MoreSettings(self.scroll.body, context, self.show_field)
        self.form_view.bind("<Configure>", lambda _e: self._soon(), add="+")
        for signal in (form.changed, form.loaded, context.preferences.changed):
            signal.subscribe(self._soon)
        self.form_view.build()

    def on_show(self) -> None:
        """Arrange what is next to the form; the form itself follows the config even while hidden."""
        self._soon()

    def show_field(self, path: str) -> bool:
        """Show a field regardless of its level, scroll to it and focus it."""
        return self.form_view.reveal(path) is not None

    def _form_room(self) -> int:
        return form_room(self._context)

    def _soon(self) -> None:
        if self.frame.is_shown:
            self._context.pump.redraw_soon((self, "arrange"), self._arrange)

    def _arrange(self) -> None:
        """Show below the form which settings it hides, if there is room."""
        groups = groups_on(self._spec, self._context.form.config)
        if self.more.follow(self.form_view, groups, self._form_room() - self.form_view.winfo_reqheight()):
            tk.Grid.grid_configure(self.more, row=2, column=0, sticky="new", pady=self._gap)
        else:
            self.more.grid_remove()


_MIN_COLUMN_PX = 384
_AROUND_PX = 78  # the heading, the margins, and the distance to the end of the page


@dataclass(frozen=True, slots=True)
class HiddenGroup:
    """The hidden fields under a heading."""

    title: str
    links: tuple[Link, ...]


def hidden_groups(config: Config, groups: Iterable[Group], shown: Iterable[str]) -> tuple[HiddenGroup, ...]:
    """Return the advanced fields that apply and are not among the paths in `shown`, by group."""
    visible, hidden = set(shown), []
    for group in groups:
        records = [r for record in group.records for r in (record, *_variant_fields(config, record))]
        links = tuple(
            Link(record.path, record.label, explanation(record))
            for record in records
            if record.path not in visible and is_shown(config, record, show_advanced=True)
        )
        if links:
            hidden.append(HiddenGroup(group.title, links))
    return tuple(hidden)


def _variant_fields(config: Config, record: FieldRecord) -> tuple[FieldRecord, ...]:
    return inline_records(config, record) if record.kind == "section" else ()


class MoreSettings(Card):
    """Call `follow` when the page, its form or the window changes; a click on a field calls `open_field(path)`."""

    def __init__(self, master: tk.Misc, context: Context, open_field: Callable[[str], object]) -> None:
        super().__init__(master, context.theme)
        self._context = context
        self._layout: tuple[object, ...] = ()
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
        if not form.is_complete or form.winfo_width() <= 1:
            return self._fits
        width = form.winfo_width()
        visible = {row.record.path for row in form.rows() if row.is_shown}
        hidden = hidden_groups(self._context.form.config, groups, visible)
        if (hidden, width, room) != self._layout:
            self._layout = (hidden, width, room)
            self._fits = bool(hidden) and self._fit(hidden, width, room)
        return self._fits

    def _fit(self, hidden: Sequence[HiddenGroup], width: int, room: int) -> bool:
        px = self._context.theme.px
        number = sum(len(group.links) for group in hidden)
        self.title.set_text(f"{count(number, 'more setting')}, at the default")
        return self.links.show([(g.title, g.links) for g in hidden], width - px(2 * PAD), room - px(_AROUND_PX))

    def _show_all(self) -> None:
        self._context.preferences.change(show_advanced=True)
