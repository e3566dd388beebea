"""A row of widgets that continues on the next line where it is too narrow."""

from __future__ import annotations

import tkinter as tk
from typing import Any

from ui.widgets.panel import Panel
from ui.widgets.theme import Theme

_GAP_PX = 6


class Flow(Panel):
    """Add widgets whose master it is; widgets added with `joined` stay on the line of the one before."""

    def __init__(self, master: tk.Misc, theme: Theme, colour: str = "card") -> None:
        super().__init__(master, theme, colour, height=1)
        self._groups: list[list[tk.Widget]] = []
        self._width = 0
        self.bind("<Configure>", self._resized)

    def add(self, widget: tk.Widget, *, joined: bool = False) -> None:
        """Add a widget at the end."""
        if joined:
            self._groups[-1].append(widget)
        else:
            self._groups.append([widget])

    def lay_out(self) -> None:
        """Place the widgets within the current width, and take the height that they need."""
        gap = self.theme.px(_GAP_PX)
        lines: list[list[tk.Widget]] = [[]]
        used = 0
        for group in self._groups:
            length = sum(widget.winfo_reqwidth() for widget in group) + gap * (len(group) - 1)
            if lines[-1] and used + length > self._width:
                lines.append([])
                used = 0
            lines[-1] += group
            used += length + gap
        top = 0
        for line in lines:
            height = max((widget.winfo_reqheight() for widget in line), default=0)
            left = 0
            for widget in line:
                # tk's own: customtkinter's refuses positions in pixels that are scaled already
                tk.Widget.place_configure(widget, x=left, y=top + (height - widget.winfo_reqheight()) // 2)
                left += widget.winfo_reqwidth() + gap
            top += height + gap
        needed = max(1, top - gap)
        if int(self.cget("height")) != needed:
            self.configure(height=needed)

    def _resized(self, event: tk.Event[Any]) -> None:
        if event.width != self._width:
            self._width = event.width
            self.lay_out()
