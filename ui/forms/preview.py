"""The preview below the fields of a card: bars, or a line, of what their values do."""

from __future__ import annotations

import tkinter as tk

from modules.settings.bar_preview import BarPreview
from modules.system.factories import load_factory
from ui.forms.context import Context
from ui.loop.series import Series
from ui.widgets.panel import Panel, WrappedText
from ui.widgets.plot import Plot
from ui.widgets.plot_axes import Axis
from ui.widgets.plot_model import BARS, Bar, Figure, Line


class Preview:
    """Bars and a caption, from the function that a field's record names."""

    def __init__(self, master: tk.Misc, context: Context, function: str, *, line: int) -> None:
        self.frame = Panel(master, context.theme, "card")
        self.chart = Plot(self.frame, context.theme, size_px=(200, 96))
        self.shown: BarPreview | None = None
        self.caption = WrappedText(self.frame, context.theme, colour="muted", on="card", role="small")
        self._context = context
        self._function = function
        px = context.theme.px
        self.chart.pack(fill="x")
        self.caption.pack(fill="x", pady=(px(4), 0))
        self.frame.grid(row=line, column=0, columnspan=3, sticky="ew", padx=(px(12), 0), pady=(px(8), 0))

    def follow(self, *, is_shown: bool) -> None:
        """Draw the current values, or hide if there is nothing to draw."""
        if not is_shown:
            self.frame.grid_remove()
            return
        config = self._context.form.config
        preview = load_factory(self._function)(config, self._context.starter.known_steps(config))
        if not (preview.bars or preview.caption):
            self.frame.grid_remove()
            return
        self.frame.grid()
        self.caption.set_text(preview.caption)
        if preview != self.shown:
            self.shown = preview
            self.chart.show(preview_figure(preview))
        if preview.bars:
            self.chart.pack(fill="x", before=self.caption)
        else:
            self.chart.pack_forget()


def preview_figure(preview: BarPreview) -> Figure:
    """Return the figure of bars, or of a line through their tops."""
    top = max(*preview.bars, preview.reference) if preview.bars else 0.0
    heights = preview.bars if len(preview.bars) > 1 else preview.bars * 2  # a single value is a level line
    line = Line("line", "", "", Series(enumerate(heights)), "chart_smooth")
    return Figure(
        frame=BARS,
        lines=(line,) if preview.is_line and preview.bars else (),
        bars=() if preview.is_line else [Bar("", height) for height in preview.bars],
        y=Axis(0.0, top or 1.0),
        ends=(preview.left, preview.right),
        reference=preview.reference,
    )
