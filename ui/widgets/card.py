"""A rounded card with a heading and rows."""

from __future__ import annotations

import tkinter as tk
from typing import Any

from ui.widgets.ctk import ctk, release_master
from ui.widgets.panel import Panel, Text
from ui.widgets.theme import GAP, PAD, RADIUS, Theme


class Card(ctk.CTkFrame):  # type: ignore[misc]
    """Add rows to `body`."""

    def __init__(self, master: tk.Misc, theme: Theme, title: str = "", *, on: str = "window") -> None:
        super().__init__(
            master, corner_radius=RADIUS, border_width=0, bg_color=theme.pair(on), fg_color=theme.pair("card")
        )
        release_master(master)
        self.heading = Text(self, theme, title, role="heading", on="card")
        if title:
            self.heading.pack(anchor="w", padx=theme.px(PAD), pady=(theme.px(12), theme.px(4)))
        top = theme.px(2 if title else PAD)
        self.body = Panel(self, theme, "card")
        # The rows start with a mark, left of the text that the heading is aligned with.
        self.body.pack(fill="both", expand=True, padx=(theme.px(GAP // 2), theme.px(PAD)), pady=(top, theme.px(10)))


class CardColumns(Panel):
    """Create cards as its children, then `add` each with its place in the two columns."""

    def __init__(self, master: tk.Misc, theme: Theme) -> None:
        super().__init__(master, theme)
        self.is_wide = False
        self._columns = [Panel(self, theme, height=1) for _ in range(2)]
        self._cards: list[tuple[Any, int, int]] = []
        self._arrange()

    def add(self, card: Any, column: int, *, gap_px: int = PAD) -> None:
        """Add a card at the end of its column; in a single column all follow each other as they are added."""
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
