"""The notices above the page, each a line with its buttons."""

from __future__ import annotations

import tkinter as tk
from functools import partial

from ui.context import Context
from ui.notices import Notice
from ui.theme import GAP, PAD
from ui.widgets.controls import Button
from ui.widgets.panel import Panel, WrappedText

_MAX_SHOWN = 3
_STRIPE = 3


class NoticeBar(Panel):
    """Takes no space without notices."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme)
        self.lines: list[NoticeLine] = []
        self._context = context
        context.notices.changed.subscribe(lambda: context.pump.redraw_soon(self, self.refresh))
        self.refresh()

    def refresh(self) -> None:
        """Show the current notices; those that are shown already stay."""
        wanted = self._context.notices.items[:_MAX_SHOWN]
        for line in self.lines:
            if line.notice not in wanted:
                line.destroy()
        kept = {line.notice.key: line for line in self.lines if line.notice in wanted}
        self.lines = [kept.get(notice.key) or NoticeLine(self, self._context, notice) for notice in wanted]
        for line in self.lines:
            line.pack_forget()
            line.pack(fill="x", padx=self.theme.px(PAD + 4), pady=(self.theme.px(GAP), 0))
        if self.lines:
            self.grid()
        else:
            self.grid_remove()


class NoticeLine(Panel):
    """A notice: a stripe, the sentence, and its buttons."""

    def __init__(self, master: tk.Misc, context: Context, notice: Notice) -> None:
        super().__init__(master, context.theme, "card")
        self.notice = notice
        self.buttons: dict[str, Button] = {}
        px = context.theme.px
        Panel(self, context.theme, "accent", width=px(_STRIPE)).pack(side="left", fill="y")
        box = Panel(self, context.theme, "card")
        box.pack(side="right", padx=px(12), pady=px(8))
        for number, reply in enumerate(notice.replies):
            button = Button(
                box,
                context.theme,
                reply.label,
                partial(context.notices.reply, notice, reply),
                style="plain" if number else "primary",
                on="card",
            )
            button.pack(side="left", padx=(GAP, 0))
            self.buttons[reply.label] = button
        dismiss = partial(context.notices.dismiss, notice)
        button = Button(box, context.theme, notice.dismiss_label, dismiss, style="ghost", on="card")
        button.pack(side="left", padx=(GAP, 0))
        self.buttons[notice.dismiss_label] = button
        self.text = WrappedText(self, context.theme, notice.text, on="card")
        self.text.pack(side="left", fill="x", expand=True, padx=(px(12), 0), pady=px(8))
