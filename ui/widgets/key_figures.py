"""A few figures at a glance: each large, above its label."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence

from ui.widgets.panel import Panel, Text
from ui.widgets.theme import Theme


class KeyFigures(Panel):
    """A row of columns as wide as their figures need, with the rest between them; without figures it takes no space."""

    def __init__(self, master: tk.Misc, theme: Theme, *, on: str) -> None:
        super().__init__(master, theme, on, height=1)
        self._shown: list[tuple[str, str, bool]] = []

    def show(self, figures: Sequence[tuple[str, str, bool]]) -> None:
        """Show the label and the value of each figure, and mark those that are too large."""
        if list(figures) == self._shown:
            return
        self._shown = list(figures)
        for child in self.winfo_children():
            child.destroy()
        for column in range(self.grid_size()[0]):
            self.columnconfigure(column, weight=0)
        for column, (label, value, is_too_large) in enumerate(figures):
            self.columnconfigure(column, weight=1)
            colour = "warning" if is_too_large else "text"
            Text(self, self.theme, value, role="heading", colour=colour, on=self.token).grid(
                row=0, column=column, sticky="w"
            )
            Text(self, self.theme, label, role="caption", colour="muted", on=self.token).grid(
                row=1, column=column, sticky="w"
            )
        if not figures:
            self.configure(height=1)
