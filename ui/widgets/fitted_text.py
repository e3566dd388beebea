"""Texts cut to the room that they have, on a canvas or in a line."""

from __future__ import annotations

import tkinter as tk
from bisect import bisect_right
from typing import Any

from ui.widgets.panel import Text
from ui.widgets.theme import Theme

_MAX_KEPT = 5000


def shorten(text: str, max_chars: int) -> str:
    """Return a text on one line, cut if it has more letters."""
    plain = " ".join(text.split())
    return plain if len(plain) <= max_chars else plain[: max(1, max_chars - 1)].rstrip() + "…"


class FittedTexts:
    """Measures each text once."""

    def __init__(self, owner: tk.Misc, theme: Theme) -> None:
        self._owner, self._theme = owner, theme
        self._cut: dict[tuple[str, str, int, bool, bool], str] = {}

    def fit(self, text: str, role: str, room: int, *, keeps_end: bool = False, keeps_words: bool = False) -> str:
        """Return a text in the font of a role, cut if it is wider than the room in pixels.

        With `keeps_end` it is cut at the start, as a path; with `keeps_words` after a word, if one has room.
        """
        key = (text, role, room, keeps_end, keeps_words)
        if key not in self._cut:
            if len(self._cut) > _MAX_KEPT:
                self._cut.clear()
            plain = " ".join(text.split())
            if self.width(plain, role) > room:

                def cut(number: int) -> str:
                    return "…" + plain[len(plain) - number :] if keeps_end else plain[:number].rstrip(" ,;:(") + "…"

                fitting = bisect_right(range(len(plain)), room, key=lambda n: self.width(cut(n), role))
                number = max(0, fitting - 1)
                if keeps_words and not plain[number : number + 1].isspace():
                    number = plain.rfind(" ", 0, number) if " " in plain[:number] else number
                plain = cut(number)
            self._cut[key] = plain
        return self._cut[key]

    def width(self, text: str, role: str) -> int:
        """Return the width of a text. A `tkinter.font.Font` would round the font's size to points."""
        return int(self._owner.tk.call("font", "measure", self._theme.font(role), text))


class FittedText(Text):
    """A sentence that is cut to a line, or with `set_one_line(False)` wrapped; it takes the width that it is given.

    With `keeps_end` its start is cut off, as of a path.
    """

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        text: str = "",
        *,
        role: str = "body",
        keeps_end: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(master, theme, text, role=role, width=1, **options)
        self._whole, self._role, self._keeps_end = text, role, keeps_end
        self._is_one_line = True
        self._texts = FittedTexts(self, theme)
        self.bind("<Configure>", lambda _e: self._fit())

    @property
    def hidden_text(self) -> str:
        """The whole sentence if it is cut; else empty."""
        return self._whole if self.cget("text") != self._whole else ""

    def show(self, text: str) -> None:
        """Show another sentence."""
        if text != self._whole:
            self._whole = text
            self.set_text(text)
            self._fit()

    def set_one_line(self, is_one_line: bool) -> None:
        """Cut the sentence to a line, or wrap it."""
        if is_one_line != self._is_one_line:
            self._is_one_line = is_one_line
            self._fit()

    def _fit(self) -> None:
        width = self.winfo_width()
        if width > 1:
            self.configure(wraplength=0 if self._is_one_line else max(40, width))
            cut = self._texts.fit(self._whole, self._role, width, keeps_end=self._keeps_end)
            self.set_text(cut if self._is_one_line else self._whole)
