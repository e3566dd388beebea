"""The notices above the page, each a line with its buttons."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import Any

from ui.forms.context import Context
from ui.widgets.controls import Button
from ui.widgets.fitted_text import FittedText
from ui.widgets.notices import Notice
from ui.widgets.panel import Panel
from ui.widgets.theme import GAP, PAD, is_low

_MAX_SHOWN, _MAX_SHOWN_LOW = 3, 1
_STRIPE = 3
_BUTTON_HEIGHT = 24


class NoticeBar(Panel):
    """Takes no space without notices. In a low window it shows the newest one, in a line, and how many more there are.

    The page keeps the height: nothing of a notice is lost, its tooltip has the whole text.
    """

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme)
        self.lines: list[NoticeLine] = []
        self._context = context
        self._shows_all = False
        context.notices.changed.subscribe(lambda: context.pump.redraw_soon(self, self.refresh))
        self.refresh()

    def refresh(self) -> None:
        """Show the current notices; those that are shown already stay."""
        items = self._context.notices.items
        low = is_low(self._context.root.winfo_height(), self.theme)
        self._shows_all = self._shows_all and len(items) > 1
        wanted = items[: _MAX_SHOWN_LOW if low and not self._shows_all else _MAX_SHOWN]
        for line in self.lines:
            if line.notice not in wanted:
                line.destroy()
        kept = {line.notice.key: line for line in self.lines if line.notice in wanted}
        self.lines = [kept.get(notice.key) or NoticeLine(self, self._context, notice) for notice in wanted]
        for line in self.lines:
            line.pack_forget()
            line.pack(fill="x", padx=self.theme.px(PAD + 4), pady=(self.theme.px(4 if low else GAP), 0))
            line.text.set_one_line(low)
        if self.lines:
            self.lines[0].offer_more(len(items) - len(wanted) if low else 0, self.show_all)
            self.grid()
        else:
            self.grid_remove()

    def show_all(self) -> None:
        """Show the notices for which a low window has no room, until one is left."""
        self._shows_all = True
        self.refresh()


class NoticeLine(Panel):
    """A notice: a stripe, the sentence, and its buttons."""

    def __init__(self, master: tk.Misc, context: Context, notice: Notice) -> None:
        super().__init__(master, context.theme, "card")
        self.notice = notice
        self.buttons: dict[str, Button] = {}
        px = context.theme.px
        Panel(self, context.theme, "accent", width=px(_STRIPE)).pack(side="left", fill="y")
        self._box = box = Panel(self, context.theme, "card")
        box.pack(side="right", padx=px(GAP), pady=px(4))
        for number, reply in enumerate(notice.replies):
            self._add_button(
                reply.label, partial(context.notices.reply, notice, reply), style="plain" if number else "primary"
            )
        self._add_button(notice.dismiss_label, partial(context.notices.dismiss, notice), style="ghost")
        self._more: Button | None = None
        self.text = FittedText(self, context.theme, notice.text, on="card")
        self.text.pack(side="left", fill="x", expand=True, padx=(px(12), 0), pady=px(4))
        context.tips.attach(self.text, lambda: self.text.hidden_text)

    def offer_more(self, number: int, show: Callable[[], object]) -> None:
        """Offer to show further notices; none removes the button."""
        if self._more is not None:
            self._more.destroy()
            self._more = None
        if number:
            self._more = self._add_button(f"{number} more", show, style="ghost")

    def _add_button(self, label: str, command: Callable[[], object], *, style: Any) -> Button:
        button = Button(
            self._box, self.theme, label, command, style=style, on="card", height=_BUTTON_HEIGHT
        )  # beside the text, it sets the height of the line
        button.pack(side="left", padx=(GAP, 0))
        self.buttons[label] = button
        return button
