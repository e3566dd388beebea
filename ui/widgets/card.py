"""A rounded card with a heading and rows."""

from __future__ import annotations

import tkinter as tk

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
