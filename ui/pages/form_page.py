"""A page that is a form of some sections of the config, and nothing else."""

from __future__ import annotations

import tkinter as tk

from ui.context import Context
from ui.forms.layout import FormView
from ui.pages.catalogue import PageSpec, groups_on
from ui.pages.page import PageFrame


class FormPage:
    """General, Model, Data, Training, Backup: whatever fields their sections have."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self.scroll = self.frame.add_scroll(context)
        form = context.form
        self.form_view = FormView(self.scroll.body, context, lambda: groups_on(spec, form.config))
        self.form_view.grid(row=0, column=0, sticky="new")
        self.form_view.build()

    def shown(self) -> None:
        """A form follows the config whether it is seen or not."""

    def hidden(self) -> None:
        """A form follows the config whether it is seen or not."""

    def show_field(self, path: str) -> bool:
        """Scroll to a field, show it whatever its level, and give it the focus."""
        row = self.form_view.reveal(path)
        if row is not None:
            self.scroll.see(row.control.frame)
        return row is not None
