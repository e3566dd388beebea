"""The dialog of tokens. Their values are masked and never enter a config; what only OneTrainer uses stays unchanged."""

from __future__ import annotations

import tkinter as tk
from pathlib import Path
from typing import Any

from modules.system.errors import DarkroomError
from modules.system.paths import secrets_file
from modules.system.secrets import (
    SECRET_FIELDS,
    SecretField,
    Secrets,
    hub_access,
    secret,
    secret_error,
    with_secret,
)
from modules.system.secrets_file import import_secrets, load_secrets, save_secrets
from ui.forms.context import Context
from ui.loop.interaction import Answer
from ui.widgets.dialog import Dialog
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text
from ui.widgets.variables import TextVar

_ANSWERS = (Answer("import", "Import…"), Answer("cancel", "Cancel"), Answer("save", "Save", is_default=True))
_ENTRY_WIDTH = 300
_WRAP_PX = 460


class SecretsDialog(Dialog):
    """Edits the stored secrets, first the one of a name; only Save writes them."""

    def __init__(self, context: Context, first: str = "huggingface_token") -> None:
        loaded = load_secrets()
        note = f"Stored in {secrets_file()}, readable only by you. Never written to configs, presets, models or logs."
        super().__init__(context.root, context.theme, "Tokens", note, _ANSWERS)
        self._context = context
        self._secrets = loaded.secrets
        self.entries: dict[str, Entry] = {}
        self._variables: dict[str, TextVar] = {}
        px = context.theme.px
        grid = Panel(self.content, context.theme)
        grid.pack(fill="x", pady=(px(12), px(10)))
        grid.columnconfigure(1, weight=1)
        for row, field in enumerate(f for f in SECRET_FIELDS if f.is_used):
            self._add_entry(grid, row, field)
        problems = " ".join(str(p) for p in loaded.problems)
        self.message = Text(self.content, context.theme, problems, colour="warning", wrap_px=_WRAP_PX)
        self.message.pack(anchor="w")
        access = f"Hugging Face requests use {hub_access(loaded.secrets).description}."
        Text(self.content, context.theme, access, colour="muted", wrap_px=_WRAP_PX).pack(anchor="w", pady=(px(6), 0))
        self._show(loaded.secrets)
        self.first_entry = self.entries[first].tk_entry
        self.first_entry.select_range(0, "end")  # a token that is pasted replaces the one there, which is masked

    def choose(self, name: str) -> None:
        """Save or import; on an error, show it and stay open."""
        if name == "import":
            self._import()
        elif name != "save" or self._save():
            super().choose(name)

    def _add_entry(self, grid: Panel, row: int, field: SecretField) -> None:
        theme = self._context.theme
        variable = TextVar(master=self)
        mask: dict[str, Any] = {"show": "•"} if field.is_key else {}
        entry = Entry(grid, theme, variable, on="window", width=_ENTRY_WIDTH, **mask)
        Text(grid, theme, field.label, colour="label").grid(row=row, column=0, sticky="w", padx=(0, theme.px(14)))
        entry.grid(row=row, column=1, sticky="ew", pady=3)
        if field.is_key:
            tk.Misc.bind(entry.tk_entry, "<ButtonRelease-1>", lambda _e: entry.tk_entry.select_range(0, "end"), add="+")
        self.entries[field.name], self._variables[field.name] = entry, variable

    def _typed_secrets(self) -> Secrets:
        secrets = self._secrets
        for name, variable in self._variables.items():
            secrets = with_secret(secrets, name, variable.get())
        return secrets

    def _show(self, secrets: Secrets) -> None:
        for name, variable in self._variables.items():
            variable.set(secret(secrets, name))

    def _save(self) -> bool:
        errors = {name: secret_error(name, variable.get()) for name, variable in self._variables.items()}
        for name, error_text in errors.items():
            self.entries[name].mark_invalid(bool(error_text))
        if any(errors.values()):
            self._show_message(" ".join(error_text for error_text in errors.values() if error_text), "error")
            return False
        try:
            save_secrets(self._typed_secrets())
        except OSError as error:
            self._show_message(
                f"Could not save the tokens: {error.strerror}. The stored tokens are unchanged.", "error"
            )
            return False
        self._context.notify("Tokens saved.")
        return True

    def _import(self) -> None:
        start = Path(self._context.preferences.now.last_folder or Path.home())
        file = self._context.interaction.ask_file("Import OneTrainer's tokens", start, (("OneTrainer", "*.json"),))
        if file is None:
            return
        try:
            secrets, names = import_secrets(file, self._typed_secrets())
        except DarkroomError as error:
            self._show_message(str(error), "error")
            return
        self._secrets = secrets
        self._show(secrets)
        labels = ", ".join(f.label for f in SECRET_FIELDS if f.name in names)
        self._show_message(f"Imported, not saved yet: {labels}. {file.name} still contains them.", "text")

    def _show_message(self, text: str, token: str) -> None:
        self.message.recolour(token)
        self.message.set_text(text)


def open_secrets(context: Context, first: str = "huggingface_token") -> None:
    """Open the dialog of tokens, with the focus on one of them, until the user saves or cancels."""
    SecretsDialog(context, first).ask()
