"""The page protocol, and the frame of all pages: title, hint, buttons, body."""

from __future__ import annotations

import tkinter as tk
from typing import Protocol

from ui.context import Context
from ui.pages.catalogue import PageSpec
from ui.theme import GAP, PAD
from ui.widgets.panel import Panel, Text
from ui.widgets.scroll import ScrollFrame

_AROUND_FORM = 66 + 62 + 66  # the top bar, the page's title, the bottom bar


class Page(Protocol):
    """A page of the window; built when first opened, then hidden and shown."""

    frame: Panel

    def shown(self) -> None:
        """Called when the page becomes visible."""

    def hidden(self) -> None:
        """Called when the page is hidden."""

    def show_field(self, path: str) -> bool:
        """Show a field; return whether the page has it."""


class PageFrame(Panel):
    """Title and hint at the top left, buttons at the top right, the page's content below."""

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
        """Return a scroll frame that fills the page below its title."""
        scroll = ScrollFrame(self, context.theme)
        scroll.grid(row=1, column=0, sticky="nsew", padx=(context.theme.px(PAD + 4), context.theme.px(4)))
        scroll.body.columnconfigure(0, weight=1)
        return scroll


def page_task(key: str) -> tuple[str, str]:
    """Return the key of the pump's task that builds a page in parts."""
    return "page", key


def form_room(context: Context) -> int:
    """Return the height of a page's form in pixels, where neither a report nor the card of first steps is open.

    It depends on the window alone, so that the fields stay in place while the user works.
    """
    return context.root.winfo_height() - context.theme.px(_AROUND_FORM)
