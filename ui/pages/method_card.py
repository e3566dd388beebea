"""The card that leads through the chosen training method: what it needs, what a step costs, what to watch."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterable

from ui.context import Context
from ui.run.method_guide import Guide, guide_of
from ui.theme import PAD
from ui.widgets.card import Card
from ui.widgets.panel import Panel, Text, WrappedText

_NEEDS, _COSTS, _WATCH = "What it needs", "What it costs", "What to watch on the Run page"
_WEIGHTS = (4, 4, 5)


class MethodCard:
    """Follows the method and its settings."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        self.card = Card(master, context.theme, "Method")
        self.guide: Guide | None = None
        self._context = context
        px = context.theme.px
        self.summary = WrappedText(self.card.body, context.theme, colour="label", on="card")
        self.summary.pack(fill="x", padx=(px(12), 0))
        self.columns = Panel(self.card.body, context.theme, "card")
        for column, weight in enumerate(_WEIGHTS):
            self.columns.columnconfigure(column, weight=weight, uniform="guide")
        context.form.changed.subscribe(lambda: context.pump.redraw_soon(self, self.refresh))
        self.refresh()

    def refresh(self) -> None:
        """Show the guide of the current method and settings."""
        guide = guide_of(self._context.form.config)
        if guide == self.guide:
            return
        self.guide = guide
        self.card.heading.set_text(guide.title)
        self.summary.set_text(guide.summary)
        for child in self.columns.winfo_children():
            child.destroy()
        lists = [(t, e) for t, e in ((_NEEDS, guide.needs), (_COSTS, guide.costs), (_WATCH, guide.watch)) if e]
        for number, (title, entries) in enumerate(lists):
            self._add_column(number, title, entries)
        if not lists:
            self.columns.pack_forget()
            return
        px = self._context.theme.px
        self.columns.pack(fill="x", padx=(px(12), 0), pady=(px(10), px(2)))

    def _add_column(self, number: int, title: str, entries: Iterable[str]) -> None:
        context, px = self._context, self._context.theme.px
        column = Panel(self.columns, context.theme, "card")
        column.grid(row=0, column=number, sticky="new", padx=(px(PAD * 1.5) if number else 0, 0))
        Text(column, context.theme, title, role="small", colour="accent", on="card").pack(anchor="w", pady=(0, px(2)))
        for text in entries:
            words = WrappedText(column, context.theme, text, colour="label", on="card", role="small")
            words.pack(fill="x", pady=(px(3), 0))
