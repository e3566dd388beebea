"""A page that is a form of some sections of the config."""

from __future__ import annotations

import tkinter as tk

from ui.forms.context import Context
from ui.forms.layout import MAX_COLUMNS, FormView
from ui.forms.more_settings import MoreSettings
from ui.forms.page import PageFrame, form_room
from ui.forms.setting_pages import PageSpec, groups_on
from ui.widgets.theme import PAD

_WIDE_FROM_PX = 1200  # of the page: a single card does not need all of it


class FormPage:
    """General, Model, Data, Training, LoRA / Adapter, Validation, Backup: the fields of their sections."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self.scroll = self.frame.add_scroll(context)
        form = context.form
        self.form_view = FormView(
            self.scroll.body,
            context,
            lambda: groups_on(spec, form.config),
            empty_note=lambda: spec.empty_note(form.config),
            room=lambda: form_room(context),
        )
        self.form_view.grid(row=0, column=0, sticky="new")
        self.more = MoreSettings(self.scroll.body, context, self.show_field)
        self._context, self._spec = context, spec
        self._is_shown = False
        self.form_view.bind("<Configure>", lambda _e: self._soon(), add="+")
        for signal in (form.changed, form.loaded, context.preferences.changed):
            signal.subscribe(self._soon)
        self.form_view.build()

    def shown(self) -> None:
        """Update what is below the form; the form itself follows the config even while hidden."""
        self._is_shown = True
        self._soon()

    def hidden(self) -> None:
        """Draw nothing below the form while hidden."""
        self._is_shown = False

    def show_field(self, path: str) -> bool:
        """Show a field regardless of its level, scroll to it and focus it."""
        row = self.form_view.reveal(path)
        if row is not None:
            self.scroll.see(row.control.frame)
        return row is not None

    def _soon(self) -> None:
        if self._is_shown:
            self._context.pump.redraw_soon((self, "more"), self._follow)

    def _follow(self) -> None:
        """Show which settings the form hides, below it, or beside a single card, if there is room."""
        px, body, groups = self._context.theme.px, self.scroll.body, groups_on(self._spec, self._context.form.config)
        num_cards = sum(1 for card in self.form_view.cards if card.num_rows_shown())
        is_beside = num_cards == 1 and body.winfo_width() >= px(_WIDE_FROM_PX)
        for column in (0, 1):
            weight = 1 if is_beside or column == 0 else 0
            body.columnconfigure(column, weight=weight, uniform="wide" if is_beside else "")
        self.form_view.limit_columns(1 if is_beside else MAX_COLUMNS)
        room = form_room(self._context) - (0 if is_beside else self.form_view.winfo_reqheight())
        place = {"row": 0, "column": 1, "padx": (px(PAD), 0)} if is_beside else {"row": 1, "column": 0, "padx": 0}
        if self.more.follow(self.form_view, groups, room):
            tk.Grid.grid_configure(self.more, sticky="new", pady=(0, px(PAD)), **place)
        else:
            self.more.grid_remove()
