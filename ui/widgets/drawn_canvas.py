"""A canvas that is drawn anew as a whole."""

from __future__ import annotations

import tkinter as tk

from ui.widgets.theme import Theme


class DrawnCanvas(tk.Canvas):
    """A canvas on the colour of a token. `draw` is called when its size or the mode changes.

    Its classes call `apply_theme` once they have what they draw.
    """

    def __init__(self, master: tk.Misc, theme: Theme, *, on: str, width: int, height: int) -> None:
        super().__init__(master, highlightthickness=0, borderwidth=0, width=theme.px(width), height=theme.px(height))
        self.theme = theme
        self._on = on
        self.bind("<Configure>", lambda _e: self.draw())

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        self.configure(background=self.theme.colour(self._on))
        self.draw()

    def draw(self) -> None:
        """Redraw everything."""
        raise NotImplementedError
