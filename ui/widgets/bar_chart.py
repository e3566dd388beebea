"""Bars or a line on a canvas, with a dashed line to compare with."""

from __future__ import annotations

import tkinter as tk

from modules.settings.shared_types import BarPreview
from ui.widgets.drawn_canvas import DrawnCanvas
from ui.widgets.theme import Theme

_HEIGHT_PX = 96
_TOP_PX, _BOTTOM_PX = 6, 18
_GAP_PX = 1
_DASHES = (3, 3)


class BarChart(DrawnCanvas):
    """Call `show` with the bars; it redraws itself when its size changes."""

    def __init__(self, master: tk.Misc, theme: Theme, *, on: str = "card") -> None:
        super().__init__(master, theme, on=on, width=200, height=_HEIGHT_PX)
        self.preview: BarPreview | None = None
        self.apply_theme()

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
        self._draw_values(preview, [bottom - bar * scale for bar in preview.bars], bottom)
        self.create_line(0, bottom, width, bottom, fill=colour("line"))
        level = bottom - preview.reference * scale
        self.create_line(0, level, width, level, fill=colour("muted"), dash=_DASHES)
        font, y = self.theme.font("caption"), self.winfo_height()
        self.create_text(0, y, text=preview.left, anchor="sw", fill=colour("muted"), font=font)
        self.create_text(width, y, text=preview.right, anchor="se", fill=colour("muted"), font=font)

    def _draw_values(self, preview: BarPreview, tops: list[float], bottom: float) -> None:
        """Draw the bars, or the line, whose values are at these heights."""
        fill, width = self.theme.colour("chart_smooth"), self.winfo_width()
        if preview.is_line:
            step = width / max(1, len(tops) - 1)
            points = [c for number, top in enumerate(tops) for c in (number * step, top)]
            points = points if len(tops) > 1 else [0, tops[0], width, tops[0]]
            self.create_line(points, fill=fill, width=self.theme.px(2), tags="line")
            return
        step = width / len(tops)
        for number, top in enumerate(tops):
            right = (number + 1) * step - self.theme.px(_GAP_PX)
            self.create_rectangle(number * step, top, right, bottom, fill=fill, width=0, tags="bar")
