"""The menu of a field's label: reset to the loaded value or the default."""

from __future__ import annotations

import tkinter as tk
from typing import Any

from modules.settings.field import FieldRecord
from ui.forms.context import Context
from ui.forms.values import display
from ui.forms.visibility import is_default
from ui.widgets.menu import make_menu


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
