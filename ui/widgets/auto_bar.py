"""A scroll bar that is empty while there is nothing to scroll, and always has the same width.

A changing width would rewrap the content, which may or may not need the bar: an endless loop. customtkinter's own bar
also draws with `update_idletasks`, which would make it an endless recursion.
"""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from typing import Any

from ui.widgets.theme import Theme

_WIDTH_PX = 12
_THUMB_PX = 5
_MIN_LENGTH_PX = 24


class AutoBar(tk.Canvas):
    """Scrolls a widget through `command`; `set` receives the visible part."""

    def __init__(self, master: tk.Misc, theme: Theme, command: Callable[..., Any], *, on: str) -> None:
        super().__init__(master, width=theme.px(_WIDTH_PX), height=1, highlightthickness=0, borderwidth=0)
        self.theme = theme
        self._on = on
        self._command = command
        self._first, self._last = 0.0, 1.0
        self._grip = 0.0
        self._is_hot = False
        self._thumb = self.create_line(0, 0, 0, 0, capstyle="round", state="hidden", width=theme.px(_THUMB_PX))
        self.bind("<Configure>", lambda _e: self._draw())
        self.bind("<Button-1>", self._grab)
        self.bind("<B1-Motion>", self._drag)
        self.bind("<Enter>", lambda _e: self._heat(True))
        self.bind("<Leave>", lambda _e: self._heat(False))
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        self.configure(background=self.theme.colour(self._on))
        self._heat(self._is_hot)

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to scroll."""
        return self._first > 0.0 or self._last < 1.0

    def set(self, first: float | str, last: float | str) -> None:
        """Show the visible part, as shares of the whole."""
        self._first, self._last = float(first), float(last)
        self._draw()

    def _draw(self) -> None:
        if not self.is_needed:
            self.itemconfigure(self._thumb, state="hidden")
            return
        x, radius = self.winfo_width() / 2, self.theme.px(_THUMB_PX) / 2
        top, bottom = self._ends()
        self.coords(self._thumb, x, top + radius, x, max(top + radius, bottom - radius))
        self.itemconfigure(self._thumb, state="normal")

    def _ends(self) -> tuple[float, float]:
        """Return the ends of the thumb; it is never too short to grab."""
        height = self.winfo_height()
        length = max((self._last - self._first) * height, min(height, self.theme.px(_MIN_LENGTH_PX)))
        hidden = 1.0 - (self._last - self._first)
        top = self._first / hidden * (height - length) if hidden > 0 else 0.0
        return top, top + length

    def _grab(self, event: tk.Event[Any]) -> None:
        top, bottom = self._ends()
        if not top <= event.y <= bottom:
            self._grip = (bottom - top) / 2
            self._drag(event)
        else:
            self._grip = event.y - top

    def _drag(self, event: tk.Event[Any]) -> None:
        top, bottom = self._ends()
        room = self.winfo_height() - (bottom - top)
        if room > 0:
            hidden = 1.0 - (self._last - self._first)
            self._command("moveto", min(hidden, max(0.0, (event.y - self._grip) / room * hidden)))

    def _heat(self, is_hot: bool) -> None:
        self._is_hot = is_hot
        self.itemconfigure(self._thumb, fill=self.theme.colour("faint" if is_hot else "track"))
