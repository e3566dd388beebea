"""Bars with labels on a canvas: in rows, or as a histogram."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from typing import Protocol

from ui.widgets.drawn_canvas import DrawnCanvas
from ui.widgets.theme import Theme

_ROW_PX, _LABEL_PX, _VALUE_PX = 18, 84, 52
_AXIS_PX = 18
_LABELS_APART_PX = 36


class BarLike(Protocol):
    """A bar: its label, its value, the value in words, and whether it is marked."""

    @property
    def label(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def words(self) -> str: ...
    @property
    def is_marked(self) -> bool: ...


class Bars(DrawnCanvas):
    """Call `show` with bars. In rows, those that do not fit are counted in the last line; a histogram shows all."""

    def __init__(self, master: tk.Misc, theme: Theme, *, is_histogram: bool = False, on: str = "card") -> None:
        super().__init__(master, theme, on=on, width=120, height=90)
        self.bars: Sequence[BarLike] = ()
        self._is_histogram = is_histogram
        self.apply_theme()

    def show(self, bars: Sequence[BarLike]) -> None:
        """Show other bars."""
        self.bars = bars
        self.draw()

    def draw(self) -> None:
        """Redraw everything."""
        self.delete("all")
        if self.bars and self.winfo_width() > 1:
            (self._draw_histogram if self._is_histogram else self._draw_rows)()

    def _fill(self, bar: BarLike) -> str:
        return self.theme.colour("warning" if bar.is_marked else "chart_smooth")

    def _draw_rows(self) -> None:
        px, colour = self.theme.px, self.theme.colour
        row, left, font = px(_ROW_PX), px(_LABEL_PX), self.theme.font("caption")
        num_fitting = max(1, self.winfo_height() // row)
        shown = self.bars if len(self.bars) <= num_fitting else self.bars[: max(1, num_fitting - 1)]
        room = max(1, self.winfo_width() - left - px(_VALUE_PX))
        most = max(bar.value for bar in self.bars) or 1
        for number, bar in enumerate(shown):
            middle = number * row + row / 2
            length = max(1, bar.value / most * room)
            self.create_text(left - px(8), middle, text=bar.label, anchor="e", fill=colour("muted"), font=font)
            top = middle - px(5)
            self.create_rectangle(left, top, left + length, middle + px(5), fill=self._fill(bar), width=0, tags="bar")
            self.create_text(left + length + px(6), middle, text=bar.words, anchor="w", fill=colour("text"), font=font)
        if len(shown) < len(self.bars):
            more = f"and {len(self.bars) - len(shown):,} more"
            self.create_text(left, len(shown) * row + row / 2, text=more, anchor="w", fill=colour("faint"), font=font)

    def _draw_histogram(self) -> None:
        px, colour = self.theme.px, self.theme.colour
        width, bottom = self.winfo_width(), self.winfo_height() - px(_AXIS_PX)
        step = width / len(self.bars)
        most = max(bar.value for bar in self.bars) or 1
        every = max(1, round(px(_LABELS_APART_PX) / step))
        for number, bar in enumerate(self.bars):
            top = bottom - bar.value / most * (bottom - px(4))
            left = number * step
            self.create_rectangle(left, top, left + step - 1, bottom, fill=self._fill(bar), width=0, tags="bar")
            if number % every == 0:
                self.create_text(
                    left, bottom + px(3), text=bar.label, anchor="nw", fill=colour("muted"),
                    font=self.theme.font("caption"),
                )  # fmt: skip
        self.create_line(0, bottom, width, bottom, fill=colour("line"))
