"""A page that is a form of some sections of the config."""

from __future__ import annotations

import tkinter as tk

from ui.context import Context
from ui.forms.layout import FormView
from ui.pages.catalogue import PageSpec, groups_on
from ui.pages.more_settings import MoreSettings
from ui.pages.page import PageFrame, form_room
from ui.theme import PAD


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
            empty_note=spec.empty_note,
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
        """Show below the form which settings it hides, if there is room."""
        room = form_room(self._context) - self.form_view.winfo_reqheight()
        if self.more.follow(self.form_view, groups_on(self._spec, self._context.form.config), room):
            tk.Grid.grid_configure(self.more, row=1, column=0, sticky="new", pady=(0, self._context.theme.px(PAD)))
        else:
            self.more.grid_remove()
