"""Cards below each other in one column, or in two side by side."""

from __future__ import annotations

import tkinter as tk
from typing import Any

from ui.widgets.panel import Panel
from ui.widgets.theme import PAD, Theme


class CardColumns(Panel):
    """Create cards as its children, then `add` each with its place in the two columns."""

    def __init__(self, master: tk.Misc, theme: Theme) -> None:
        super().__init__(master, theme)
        self.is_wide = False
        self._columns = [Panel(self, theme, height=1) for _ in range(2)]
        self._cards: list[tuple[Any, int, int]] = []
        self._arrange()

    def add(self, card: Any, column: int, *, gap_px: int = PAD) -> None:
        """Add a card below those of its column; in a single column all follow each other as they are added."""
        self._cards.append((card, column, self.theme.px(gap_px)))
        self._arrange()

    def set_wide(self, *, is_wide: bool) -> None:
        """Choose between one column and two."""
        if is_wide != self.is_wide:
            self.is_wide = is_wide
            self._arrange()

    def _arrange(self) -> None:
        for number, column in enumerate(self._columns):
            is_used = number == 0 or self.is_wide
            self.columnconfigure(number, weight=1 if is_used else 0, uniform="columns" if is_used else "")
            if is_used:
                column.grid(row=0, column=number, sticky="new", padx=(self.theme.px(PAD) if number else 0, 0))
            else:
                column.grid_remove()
        for card, number, gap in self._cards:
            place = self._columns[number if self.is_wide else 0]
            tk.Pack.pack_configure(card, in_=place, fill="x", pady=(0, gap))
            card.lift()
