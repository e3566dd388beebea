"""The editor of a list entry that has only fields: a sample prompt, a reward model."""

from __future__ import annotations

import tkinter as tk

from modules.config.records import inner_records
from modules.settings.field import Section
from ui.forms.context import Context
from ui.forms.layout import FormView
from ui.forms.records import Group
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.scroll import ScrollFrame
from ui.widgets.theme import PAD

_SIZE = (560, 620)


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
        self._unwatch = context.form.watch(self._list_path, self._follow)
        self.appear(*_SIZE)
        text = _first_text(scroll.body)
        if text is not None:
            text.focus_set()  # such as the prompt of a sample that was just added

    def show_field(self, path: str) -> bool:
        """Show a field."""
        return self.form_view.reveal(path) is not None

    def destroy(self) -> None:
        """Also unsubscribe from the model."""
        self._unwatch()
        super().destroy()

    def _follow(self) -> None:
        if len(self._context.form.value(self._list_path)) != self._num_items:
            self._context.root.after_idle(self.close)


def _first_text(master: tk.Misc) -> tk.Misc | None:
    """Return the first widget inside that takes text."""
    for child in master.winfo_children():
        found = child if isinstance(child, tk.Text | tk.Entry) else _first_text(child)
        if found is not None:
            return found
    return None
