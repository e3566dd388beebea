"""The message with an action, above the bottom bar: it covers nothing and moves nothing but the page's lower edge."""

from __future__ import annotations

import tkinter as tk

from ui.context import Context
from ui.theme import GAP, PAD
from ui.widgets.controls import Button
from ui.widgets.panel import Panel, WrappedText, rule


class NoticeBar(Panel):
    """Shown while there is a message."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme, "selection")
        self._context = context
        px = context.theme.px
        rule(self, context.theme).pack(fill="x")
        inner = Panel(self, context.theme, "selection")
        inner.pack(fill="x", padx=px(PAD + 4), pady=px(6))
        self.close_button = Button(inner, context.theme, "Dismiss", context.notices.dismiss, on="selection", height=26)
        self.close_button.pack(side="right", padx=(GAP, 0))
        self.button = Button(inner, context.theme, "", context.notices.act, style="primary", on="selection", height=26)
        self.text = WrappedText(inner, context.theme, on="selection")
        self.text.pack(side="left", fill="x", expand=True)
        context.notices.changed.subscribe(self.refresh)

    def refresh(self) -> None:
        """Show the current message, or nothing."""
        notice = self._context.notices.now
        if notice is None:
            self.grid_remove()
            return
        self.text.set_text(notice.text)
        self.button.pack_forget()
        if notice.label:
            self.button.configure(text=notice.label)
            self.button.pack(side="right", padx=(GAP, 0))
        self.grid()
