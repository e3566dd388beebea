"""The preview below the rows of a card: what the current values of its fields do."""

from __future__ import annotations

import tkinter as tk

from modules.system.factories import load_factory
from ui.forms.context import Context
from ui.widgets.bar_chart import BarChart
from ui.widgets.panel import Panel, WrappedText

ROWS = 4  # its height, in rows of fields


class Preview:
    """Bars and a caption, from the function that a field's record names."""

    def __init__(self, master: tk.Misc, context: Context, function: str, *, line: int) -> None:
        self.frame = Panel(master, context.theme, "card")
        self.chart = BarChart(self.frame, context.theme)
        self.caption = WrappedText(self.frame, context.theme, colour="muted", on="card", role="small")
        self._context = context
        self._function = function
        px = context.theme.px
        self.chart.pack(fill="x")
        self.caption.pack(fill="x", pady=(px(4), 0))
        self.frame.grid(row=line, column=0, columnspan=3, sticky="ew", padx=(px(12), 0), pady=(px(8), 0))

    def follow(self, *, is_shown: bool) -> None:
        """Draw the current values, or hide."""
        if not is_shown:
            self.frame.grid_remove()
            return
        config = self._context.form.config
        preview = load_factory(self._function)(config, self._context.starter.known_steps(config))
        self.frame.grid()
        self.caption.set_text(preview.caption)
        self.chart.show(preview)
        if preview.bars:
            self.chart.pack(fill="x", before=self.caption)
        else:
            self.chart.pack_forget()
