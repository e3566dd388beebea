"""The line of the file dialog in which a new folder gets its name."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from ui.widgets.controls import Button
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import GAP, Theme
from ui.widgets.variables import TextVar

_PROPOSED = "New folder"


class NewFolderBar(Panel):
    """Shown below the path by `ask`. `create(name)` returns why it was not created; `left()` takes the focus."""

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        *,
        below: tk.Widget,
        create: Callable[[str], str],
        left: Callable[[], object],
    ) -> None:
        super().__init__(master, theme)
        self._below = below
        self.name = TextVar(master=self)
        self._create, self._left = create, left
        self.message = WrappedText(self, theme, role="small", colour="error")
        Text(self, theme, "New folder", colour="label").pack(side="left", padx=(0, GAP))
        self.cancel_button = Button(self, theme, "Cancel", self.close, width=72)
        self.cancel_button.pack(side="right", padx=(GAP, 0))
        self.create_button = Button(self, theme, "Create", self.create, width=72)
        self.create_button.pack(side="right", padx=(GAP, 0))
        self.entry = Entry(self, theme, self.name, on="window", placeholder="Name")
        self.entry.pack(side="left", fill="x", expand=True)
        inner = self.entry.tk_entry
        inner.bind("<Return>", lambda _e: self.create())
        inner.bind("<Escape>", lambda _e: self.close())
        self.name.trace_add("write", lambda *_: self._say(""))

    def ask(self) -> None:
        """Appear with a name that can be typed over."""
        self.name.set(_PROPOSED)
        self.pack(side="top", fill="x", after=self._below, pady=(0, self.theme.px(10)))
        self.entry.tk_entry.focus_force()
        self.entry.tk_entry.select_range(0, "end")

    def create(self) -> str:
        """Create the folder; a name that is refused can be corrected."""
        reason = self._create(self.name.get())
        self._say(reason)
        if not reason:
            self.close()
        return "break"

    def _say(self, reason: str) -> None:
        """Show why the name cannot be used, below it."""
        self.entry.mark_invalid(bool(reason))
        self.message.set_text(reason)
        if reason:
            self.message.pack(side="bottom", fill="x", before=self.winfo_children()[1], pady=(self.theme.px(4), 0))
        else:
            self.message.pack_forget()

    def close(self) -> str:
        """Disappear."""
        self.pack_forget()
        self._left()
        return "break"
