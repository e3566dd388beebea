"""A thin progress bar."""

from __future__ import annotations

import tkinter as tk

from ui.widgets.theme import Theme

_HEIGHT_PX = 4


class ThinBar(tk.Canvas):
    """Call `set` with a share from 0 to 1."""

    def __init__(self, master: tk.Misc, theme: Theme, *, on: str = "bar", width_px: int = 120) -> None:
        height = theme.px(_HEIGHT_PX)
        super().__init__(
            master, width=theme.px(width_px), height=height, highlightthickness=0, borderwidth=0, takefocus=False
        )
        self.theme = theme
        self.share = 0.0
        self._on = on
        self._track = self.create_rectangle(0, 0, 0, height, width=0)
        self._fill = self.create_rectangle(0, 0, 0, height, width=0)
        self.bind("<Configure>", lambda _e: self._draw())
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        self.configure(background=self.theme.colour(self._on))
        self.itemconfigure(self._track, fill=self.theme.colour("track"))
        self.itemconfigure(self._fill, fill=self.theme.colour("accent"))

    def set(self, share: float) -> None:
        """Show a share, clamped to 0 to 1."""
        share = min(1.0, max(0.0, share))
        if share != self.share:
            self.share = share
            self._draw()

    def set_width(self, width_px: int) -> None:
        """Set the width, in design pixels."""
        if int(self.cget("width")) != self.theme.px(width_px):
            self.configure(width=self.theme.px(width_px))

    def _draw(self) -> None:
        width, height = self.winfo_width(), self.winfo_height()
        self.coords(self._track, 0, 0, width, height)
        self.coords(self._fill, 0, 0, round(width * self.share), height)
