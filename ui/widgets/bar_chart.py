"""Bars on a canvas, with a dashed line to compare with."""

from __future__ import annotations

import tkinter as tk

from modules.settings.preview import BarPreview
from ui.theme import Theme

_HEIGHT_PX = 96
_TOP_PX, _BOTTOM_PX = 6, 18
_GAP_PX = 1
_DASHES = (3, 3)


class BarChart(tk.Canvas):
    """Call `show` with the bars; it redraws itself when its size changes."""

    def __init__(self, master: tk.Misc, theme: Theme, *, on: str = "card") -> None:
        super().__init__(master, highlightthickness=0, borderwidth=0, width=theme.px(200), height=theme.px(_HEIGHT_PX))
        self.theme = theme
        self.preview: BarPreview | None = None
        self._on = on
        self.bind("<Configure>", lambda _e: self.draw())
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        self.configure(background=self.theme.colour(self._on))
        self.draw()

    def show(self, preview: BarPreview) -> None:
        """Draw other bars."""
        if preview != self.preview:
            self.preview = preview
            self.draw()

    def draw(self) -> None:
        """Redraw everything."""
        self.delete("all")
        preview = self.preview
        if preview is None or not preview.bars:
            return
        px, colour = self.theme.px, self.theme.colour
        width, bottom = self.winfo_width(), self.winfo_height() - px(_BOTTOM_PX)
        scale = (bottom - px(_TOP_PX)) / max(*preview.bars, preview.reference)
        step = width / len(preview.bars)
        for number, bar in enumerate(preview.bars):
            left, right = number * step, (number + 1) * step - px(_GAP_PX)
            top = bottom - bar * scale
            self.create_rectangle(left, top, right, bottom, fill=colour("chart_smooth"), width=0, tags="bar")
        self.create_line(0, bottom, width, bottom, fill=colour("line"))
        level = bottom - preview.reference * scale
        self.create_line(0, level, width, level, fill=colour("muted"), dash=_DASHES)
        font, y = self.theme.font("caption"), self.winfo_height()
        self.create_text(0, y, text=preview.left, anchor="sw", fill=colour("muted"), font=font)
        self.create_text(width, y, text=preview.right, anchor="se", fill=colour("muted"), font=font)
