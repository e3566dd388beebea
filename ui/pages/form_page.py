"""A page that is a form of some sections of the config."""

from __future__ import annotations

import tkinter as tk

from ui.context import Context
from ui.forms.layout import FormView
from ui.pages.catalogue import PageSpec, groups_on
from ui.pages.page import PageFrame, form_room


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
        self.form_view.build()

    def shown(self) -> None:
        """Do nothing: a form follows the config even while hidden."""

    def hidden(self) -> None:
        """Do nothing: a form follows the config even while hidden."""

    def show_field(self, path: str) -> bool:
        """Show a field regardless of its level, scroll to it and focus it."""
        row = self.form_view.reveal(path)
        if row is not None:
            self.scroll.see(row.control.frame)
        return row is not None
