"""Texts cut to the room that they have on a canvas."""

from __future__ import annotations

import tkinter as tk
import tkinter.font as tkfont
from bisect import bisect_right

from ui.theme import Theme

_MAX_KEPT = 5000


class FittedTexts:
    """Measures each text once."""

    def __init__(self, owner: tk.Misc, theme: Theme) -> None:
        self._owner, self._theme = owner, theme
        self._fonts: dict[str, tkfont.Font] = {}
        self._cut: dict[tuple[str, str, int], str] = {}

    def fitted(self, text: str, role: str, room: int) -> str:
        """Return a text in the font of a role, cut where it is wider than the room in pixels."""
        key = (text, role, room)
        if key not in self._cut:
            if len(self._cut) > _MAX_KEPT:
                self._cut.clear()
            font = self._fonts.setdefault(role, tkfont.Font(self._owner, font=self._theme.font(role)))
            plain = " ".join(text.split())
            if font.measure(plain) > room:
                fitting = bisect_right(range(len(plain)), room, key=lambda n: font.measure(plain[:n] + "…"))
                plain = plain[: max(0, fitting - 1)].rstrip() + "…"
            self._cut[key] = plain
        return self._cut[key]
