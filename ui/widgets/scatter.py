"""Points on a canvas, larger where there are more of them; the one under the pointer is described."""

from __future__ import annotations

import math
import tkinter as tk
from collections.abc import Sequence
from typing import Any, Protocol

from ui.widgets.canvas_batch import CanvasBatch
from ui.widgets.theme import Theme

_LEFT_PX, _BOTTOM_PX, _TOP_PX, _RIGHT_PX = 40, 20, 18, 10
_SMALLEST_PX, _LARGEST_PX = 3, 11
_REACH_PX = 8


class PointLike(Protocol):
    """A point with a number of things at it, and both in words."""

    @property
    def x(self) -> float: ...
    @property
    def y(self) -> float: ...
    @property
    def number(self) -> int: ...
    @property
    def words(self) -> str: ...


class Scatter(tk.Canvas):
    """Call `show` with points. Both axes begin at 0 and have the same scale; a dashed line is where they are equal."""

    def __init__(self, master: tk.Misc, theme: Theme, *, on: str = "card") -> None:
        super().__init__(master, highlightthickness=0, borderwidth=0, width=theme.px(120), height=theme.px(90))
        self.theme = theme
        self.points: Sequence[PointLike] = ()
        self._on = on
        self._places: list[tuple[float, float, PointLike]] = []
        self.bind("<Configure>", lambda _e: self.draw())
        self.bind("<Motion>", self._moved)
        self.bind("<Leave>", lambda _e: self._describe(""))
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        self.configure(background=self.theme.colour(self._on))
        self.draw()

    def show(self, points: Sequence[PointLike]) -> None:
        """Show other points."""
        self.points = points
        self.draw()

    def draw(self) -> None:
        """Redraw everything."""
        if not self.points or self.winfo_width() <= 1:
            self.delete("all")
            return
        px, colour, font = self.theme.px, self.theme.colour, self.theme.font("caption")
        left, bottom = px(_LEFT_PX), self.winfo_height() - px(_BOTTOM_PX)
        room_x, room_y = self.winfo_width() - left - px(_RIGHT_PX), bottom - px(_TOP_PX)
        widest, highest = max(p.x for p in self.points), max(p.y for p in self.points)
        scale = min(room_x / widest, room_y / highest)
        most = max(p.number for p in self.points)
        batch = CanvasBatch(self)
        batch.add("line", left, px(_TOP_PX), left, bottom, left + room_x, bottom, fill=colour("line"))
        equal = min(room_x, room_y)
        batch.add("line", left, bottom, left + equal, bottom - equal, fill=colour("chart_grid"), dash=(4, 4))
        batch.add("text", left, bottom + px(3), text="0", anchor="nw", fill=colour("muted"), font=font)
        batch.add(
            "text", left + widest * scale, bottom + px(3), text=f"{widest:g} px wide", anchor="ne",
            fill=colour("muted"), font=font,
        )  # fmt: skip
        batch.add(
            "text", left - px(4), bottom - highest * scale, text=f"{highest:g}", anchor="e", fill=colour("muted"),
            font=font,
        )  # fmt: skip
        self._places = [(left + p.x * scale, bottom - p.y * scale, p) for p in self.points]
        for x, y, point in self._places:
            radius = px(_SMALLEST_PX + (_LARGEST_PX - _SMALLEST_PX) * math.sqrt(point.number / most) / 2)
            batch.add(
                "oval", x - radius, y - radius, x + radius, y + radius, fill=colour("chart_smooth"),
                outline=colour(self._on), tags="point",
            )  # fmt: skip
        batch.add(
            "text", self.winfo_width() - px(_RIGHT_PX), 0, anchor="ne", fill=colour("text"), font=font, tags="words"
        )
        batch.draw()

    def _moved(self, event: tk.Event[Any]) -> None:
        near = [(math.hypot(x - event.x, y - event.y), p.words) for x, y, p in self._places]
        distance, words = min(near, default=(math.inf, ""))
        self._describe(words if distance <= self.theme.px(_REACH_PX) else "")

    def _describe(self, words: str) -> None:
        self.itemconfigure("words", text=words)
