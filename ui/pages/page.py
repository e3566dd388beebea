"""What a page is, and the frame that all pages share: a heading, what the page is for, its buttons, its body."""

from __future__ import annotations

import tkinter as tk
from typing import Protocol

from ui.context import Context
from ui.pages.catalogue import PageSpec
from ui.theme import GAP, PAD
from ui.widgets.panel import Panel, Text
from ui.widgets.scroll import ScrollFrame


class Page(Protocol):
    """A page of the window; built when first opened, kept, hidden and shown again."""

    frame: Panel

    def shown(self) -> None:
        """Take notice of being in sight from now on."""

    def hidden(self) -> None:
        """Take notice of being out of sight from now on."""

    def show_field(self, path: str) -> bool:
        """Lead the user to a field; return whether the page has it."""


class PageFrame(Panel):
    """Title and hint at the top, buttons at the right, and below them what the page puts there."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        super().__init__(master, context.theme, "window")
        px = context.theme.px
        self.columnconfigure(0, weight=1)
        self.rowconfigure(1, weight=1)
        header = Panel(self, context.theme)
        header.grid(row=0, column=0, sticky="ew", padx=px(PAD + 4), pady=(px(PAD), px(12)))
        Text(header, context.theme, spec.title, role="title").pack(side="left")
        Text(header, context.theme, spec.hint, colour="muted").pack(side="left", padx=(px(14), 0), pady=(px(5), 0))
        self.buttons = Panel(header, context.theme)
        self.buttons.pack(side="right")
        for name in spec.actions:
            context.buttons.make(self.buttons, name).pack(side="left", padx=(GAP, 0))

    def add_scroll(self, context: Context) -> ScrollFrame:
        """Return a scroll frame that fills the page below the heading."""
        scroll = ScrollFrame(self, context.theme)
        scroll.grid(row=1, column=0, sticky="nsew", padx=(context.theme.px(PAD + 4), context.theme.px(4)))
        scroll.body.columnconfigure(0, weight=1)
        return scroll
