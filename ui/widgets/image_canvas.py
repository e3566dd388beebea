"""A canvas with a scroll bar, and images that are loaded in the background: what grids and lists of images share."""

from __future__ import annotations

import tkinter as tk
from typing import Any

from ui.loop.pump import Pump
from ui.widgets.auto_bar import AutoBar
from ui.widgets.panel import Panel
from ui.widgets.photos import Load, Photos, fitted_into_square
from ui.widgets.theme import Theme


class ImageCanvas(Panel):
    """A subclass draws what is in sight, from `_top` on, and returns the height of all of it."""

    wheel_px = 60

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        pump: Pump,
        *,
        on: str,
        most_photos: int,
        load: Load = fitted_into_square,
        takes_focus: bool = False,
    ) -> None:
        super().__init__(master, theme, on)
        self.canvas = tk.Canvas(
            self, highlightthickness=0, borderwidth=0, takefocus=takes_focus, background=theme.colour(on),
            width=theme.px(180), height=theme.px(100),
        )  # fmt: skip
        self._pump = pump
        self._top = 0
        self._photos = Photos(self.canvas, pump, self.draw_soon, most=most_photos, load=load)
        self._bar = AutoBar(self, theme, self._scroll_by_bar, on=on)
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        self.canvas.grid(row=0, column=0, sticky="nsew")
        self._bar.grid(row=0, column=1, sticky="ns")
        # Not at once: Tk calls this while it places children, when none may be removed (the bar is).
        redrawn = ("<Configure>", "<FocusIn>", "<FocusOut>") if takes_focus else ("<Configure>",)
        for sequence in redrawn:
            self.canvas.bind(sequence, lambda _e: self.draw_soon(), add="+")
        for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
            self.canvas.bind(sequence, self._wheel)

    def content_height(self) -> int:
        """Return the height of everything in pixels."""
        raise NotImplementedError

    def draw(self) -> None:
        """Draw what is in sight."""
        raise NotImplementedError

    def draw_soon(self) -> None:
        """Draw on the next turn of the pump."""
        self._pump.redraw_soon(self, self.draw)

    def scroll(self, by_px: int) -> None:
        """Scroll down, or up for a negative distance."""
        self._top = max(0, self._top + by_px)
        self.draw_soon()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        super().apply_theme()
        self.canvas.configure(background=self.theme.colour(self.token))
        self.draw_soon()

    def destroy(self) -> None:
        """Also cancel the images that are still being loaded."""
        self._photos.close()
        self._pump.forget(self)
        super().destroy()

    def _keep_inside(self) -> None:
        """Keep the place inside what there is, and show it on the bar."""
        height, whole = self.canvas.winfo_height(), self.content_height()
        self._top = max(0, min(self._top, whole - height))
        self._bar.set(self._top / max(1, whole), min(1.0, (self._top + height) / max(1, whole)))

    def _write_in_the_middle(self, text: str) -> None:
        """Write a text where there are no images."""
        self._bar.set(0, 1)
        width, height = self.canvas.winfo_width(), self.canvas.winfo_height()
        self.canvas.create_text(
            width / 2, height / 2, text=text, width=max(80, width - 40), justify="center",
            fill=self.theme.colour("faint"), font=self.theme.font("small"),
        )  # fmt: skip

    def _scroll_by_bar(self, kind: str, amount: Any, _unit: str = "") -> None:
        if kind == "moveto":
            self._top = int(float(amount) * self.content_height())
            self.draw_soon()
        else:
            self.scroll(int(float(amount) * self.theme.px(self.wheel_px)))

    def _wheel(self, event: tk.Event[Any]) -> str:
        is_up = event.num == 4 or event.delta > 0
        self.scroll(self.theme.px(-self.wheel_px if is_up else self.wheel_px))
        return "break"


def shortened(text: str, max_chars: int) -> str:
    """Return a text on one line, cut where it is longer."""
    plain = " ".join(text.split())
    return plain if len(plain) <= max_chars else plain[: max(1, max_chars - 1)] + "…"
