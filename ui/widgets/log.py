"""A list of log lines, coloured by tone; it follows the end while the end is visible."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Sequence

from ui.run.words import LogLine
from ui.theme import Theme
from ui.widgets.auto_bar import AutoBar
from ui.widgets.panel import Panel

_TONES = {"plain": "text", "good": "good", "warning": "warning", "error": "error"}


class LogView(Panel):
    """Call `show` with all lines; new ones are appended and dropped ones removed."""

    def __init__(self, master: tk.Misc, theme: Theme, *, on: str = "card") -> None:
        super().__init__(master, theme, on)
        self._lines: tuple[LogLine, ...] = ()
        self._is_following = True
        self.text = tk.Text(
            self,
            wrap="word",
            borderwidth=0,
            highlightthickness=0,
            font=theme.font("small"),
            state="disabled",
            cursor="arrow",
            height=4,
            width=20,
            spacing1=theme.px(2),
            spacing3=theme.px(2),
        )
        bar = AutoBar(self, theme, self.text.yview, on=on)
        self.text.configure(yscrollcommand=bar.set)
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        self.text.grid(row=0, column=0, sticky="nsew")
        bar.grid(row=0, column=1, sticky="ns")
        self.text.bind("<Configure>", lambda _e: self._follow(), add="+")
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        super().apply_theme()
        if not hasattr(self, "text"):
            return
        colour, indent = self.theme.colour, self.theme.px(58)
        self.text.configure(background=colour(self.token), foreground=colour("text"), tabs=(indent,))
        self.text.tag_configure("time", foreground=colour("faint"), lmargin2=indent)
        for tone, token in _TONES.items():
            self.text.tag_configure(tone, foreground=colour(token), lmargin2=indent)

    def show(self, lines: Sequence[LogLine]) -> None:
        """Show these lines; if they continue the current ones, only the new ones are appended."""
        lines = tuple(lines)
        if lines == self._lines:
            return
        new = lines_after(self._lines, lines)
        is_continued = len(new) < len(lines) or not self._lines
        self._is_following = not is_continued or self.text.yview()[1] >= 0.999 or not self._lines
        self.text.configure(state="normal")
        if is_continued:
            self._forget(len(self._lines) + len(new) - len(lines))
        else:
            self.text.delete("1.0", "end")
        for line in new:
            begin = "\n" if self.text.index("end-1c") != "1.0" else ""
            clock = time.strftime("%H:%M:%S", time.localtime(line.at_seconds))
            self.text.insert("end", f"{begin}{clock}\t", ("time",), line.text, (line.tone,))
        self.text.configure(state="disabled")
        self._lines = lines
        self._follow()

    def _forget(self, count: int) -> None:
        """Remove the oldest lines, so that the log of a long run does not grow without limit."""
        num_rows = sum(1 + line.text.count("\n") for line in self._lines[:count])
        if num_rows:
            self.text.delete("1.0", f"{num_rows + 1}.0")

    def _follow(self) -> None:
        if self._is_following:
            self.text.see("end")


def lines_after(before: tuple[LogLine, ...], now: tuple[LogLine, ...]) -> tuple[LogLine, ...]:
    """Return the new lines; the oldest ones may have been dropped. All lines for a different log."""
    if not before:
        return now
    for index in range(len(now) - 1, -1, -1):
        if now[index] is before[-1]:
            return now[index + 1 :]
    return now
