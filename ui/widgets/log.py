"""A list of log lines, coloured by tone; it follows the end while the end is visible, and hides no line in part."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainer.log_lines import LogLine
from ui.widgets.auto_bar import AutoBar
from ui.widgets.controls import Button, Choice
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text
from ui.widgets.theme import GAP, Theme
from ui.widgets.variables import TextVar, keep

_TONES = {"plain": "text", "good": "good", "warning": "warning", "error": "error"}
_WHEEL_LINES = 3
_SPACING_PX = 2


class LogView(Panel):
    """Call `show` with all lines; new ones are appended and dropped ones removed."""

    def __init__(self, master: tk.Misc, theme: Theme) -> None:
        super().__init__(master, theme, "card")
        self._lines: tuple[LogLine, ...] = ()
        self._is_following = True
        space = theme.px(_SPACING_PX)
        # A wrapped line has the same distance as the next one, so that whole lines fill a multiple of one height.
        self.text = tk.Text(
            self,
            wrap="word",
            borderwidth=0,
            highlightthickness=0,
            padx=0,
            pady=0,
            font=theme.font("small"),
            state="disabled",
            cursor="arrow",
            height=4,
            width=20,
            spacing1=space,
            spacing2=2 * space,
            spacing3=space,
        )
        # Of the font as given: a Font object rounds its size, and can be a pixel higher.
        self._line_px = int(self.tk.call("font", "metrics", theme.font("small"), "-linespace")) + 2 * space
        self._room = Panel(self, theme, "card", width=theme.px(200), height=4 * self._line_px)
        self._bar = AutoBar(self, theme, self._scroll, on="card")
        self.text.configure(yscrollcommand=self._bar.set)
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        self._room.grid(row=0, column=0, sticky="nsew")
        self._bar.grid(row=0, column=1, sticky="ns")
        self.text.place(in_=self._room, x=0, y=0, relwidth=1.0, height=4 * self._line_px)
        self.text.lift()
        self._room.bind("<Configure>", self._fit, add="+")
        self.text.bind("<Configure>", lambda _e: self._follow(), add="+")
        self.text.bind("<Button-1>", lambda _e: self.text.focus_set(), add="+")
        for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
            self.text.bind(sequence, self._wheel)
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        super().apply_theme()
        if not hasattr(self, "text"):
            return
        colour, indent = self.theme.colour, self.theme.px(58)
        self.text.configure(
            background=colour(self.token),
            foreground=colour("text"),
            tabs=(indent,),
            selectbackground=colour("selection"),
            selectforeground=colour("text"),
            inactiveselectbackground=colour("selection"),
        )
        self.text.tag_configure("time", foreground=colour("faint"), lmargin2=indent)
        for tone, token in _TONES.items():
            self.text.tag_configure(tone, foreground=colour(token), lmargin2=indent)

    @property
    def lines(self) -> tuple[LogLine, ...]:
        """The lines that are shown."""
        return self._lines

    @property
    def selected(self) -> str:
        """The selected text; empty if nothing is."""
        return self.text.get("sel.first", "sel.last") if self.text.tag_ranges("sel") else ""

    def replace(self, lines: Sequence[LogLine]) -> None:
        """Show other lines, from their end."""
        self.show(())
        self.show(lines)

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
            self.text.insert("end", f"{begin}{clock(line.at_seconds)}\t", ("time",), line.text, (line.tone,))
        self.text.configure(state="disabled")
        self._lines = lines
        self._follow()

    def _forget(self, count: int) -> None:
        """Remove the oldest lines, so that the log of a long run does not grow without limit."""
        num_rows = sum(1 + line.text.count("\n") for line in self._lines[:count])
        if num_rows:
            self.text.delete("1.0", f"{num_rows + 1}.0")

    def _fit(self, event: tk.Event[Any]) -> None:
        """Give the text the height of the whole lines that fit."""
        self.text.place_configure(height=max(1, event.height // self._line_px) * self._line_px)

    def _scroll(self, *arguments: Any) -> None:
        self.text.yview(*arguments)
        self.text.yview(self.text.index("@0,0"))  # a whole line at the top

    def _wheel(self, event: tk.Event[Any]) -> str:
        is_up = event.num == 4 or event.delta > 0
        self.text.yview_scroll(-_WHEEL_LINES if is_up else _WHEEL_LINES, "units")
        return "break"

    def _follow(self) -> None:
        if self._is_following:
            self.text.see("end")


class JobLines(tk.Text):
    """The newest lines of what a job prints, as a text that can be selected."""

    def __init__(self, master: tk.Misc, theme: Theme, *, height: int, wrap: Literal["none", "char"]) -> None:
        px = theme.px
        super().__init__(
            master, height=height, wrap=wrap, borderwidth=0, highlightthickness=0, state="disabled", padx=px(8),
            pady=px(6), font=theme.font("small"),
        )  # fmt: skip
        self.theme = theme
        self._lines: tuple[str, ...] = ()
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        self.configure(background=self.theme.colour("card"), foreground=self.theme.colour("muted"))

    def show(self, lines: tuple[str, ...]) -> None:
        """Show lines, the last one in view."""
        if lines == self._lines:
            return
        self._lines = lines
        self.configure(state="normal")
        self.delete("1.0", "end")
        self.insert("1.0", "\n".join(lines))
        self.see("end")
        self.configure(state="disabled")


class LogPanel(Panel):
    """A log with its heading, a filter by words and level, and Copy. `on_copied` gets the number of lines.

    The filter is kept in `kept`.
    """

    def __init__(
        self, master: tk.Misc, theme: Theme, *, on_copied: Callable[[int], object], kept: dict[str, Any]
    ) -> None:
        super().__init__(master, theme, "card")
        self._all: Sequence[LogLine] = ()
        self._on_copied = on_copied
        self.words, self.level = TextVar(master=self), TextVar(master=self, value="all")
        keep(self.words, kept, "words")
        keep(self.level, kept, "level")
        row = Panel(self, theme, "card")
        row.pack(fill="x", pady=(theme.px(2), theme.px(6)))
        Text(row, theme, "Log", role="heading", on="card").pack(side="left", padx=(0, theme.px(GAP * 2)))
        self.entry = Entry(row, theme, self.words, placeholder="Filter")
        level = Choice(row, theme, self.level, LEVELS, width=124)
        self.copy_button = Button(row, theme, "Copy", self.copy, on="card", height=26)
        self.copy_button.pack(side="right")
        level.pack(side="right", padx=GAP)
        self.entry.pack(side="left", fill="x", expand=True)
        self.view = LogView(self, theme)
        self.view.pack(fill="both", expand=True)
        for variable in (self.words, self.level):
            variable.trace_add("write", lambda *_: self.view.replace(self.filter.select(self._all)))

    @property
    def text(self) -> tk.Text:
        """The Tk text with the shown lines."""
        return self.view.text

    @property
    def filter(self) -> LogFilter:
        """The chosen filter."""
        return LogFilter(self.words.get(), self.level.get())

    def show(self, lines: Sequence[LogLine]) -> None:
        """Show the lines that match the filter."""
        self._all = lines
        self.view.show(self.filter.select(lines))

    def copy(self) -> None:
        """Copy the selected text, or all lines that are shown."""
        text = self.view.selected or as_text(self.view.lines)
        self.clipboard_clear()
        self.clipboard_append(text)
        self._on_copied(len(text.splitlines()))


def lines_after(before: tuple[LogLine, ...], now: tuple[LogLine, ...]) -> tuple[LogLine, ...]:
    """Return the new lines; the oldest ones may have been dropped. All lines for a different log."""
    if not before:
        return now
    for index in range(len(now) - 1, -1, -1):
        if now[index] is before[-1]:
            return now[index + 1 :]
    return now


LEVELS: Mapping[str, str] = {"all": "All lines", "warning": "Warnings, errors", "error": "Errors"}
_TONES_SHOWN: Mapping[str, frozenset[str]] = {
    "all": frozenset({"plain", "good", "warning", "error"}),
    "warning": frozenset({"warning", "error"}),
    "error": frozenset({"error"}),
}


@dataclass(frozen=True, slots=True)
class LogFilter:
    """A level, and words that a line must contain, in any order and with any capitals."""

    text: str = ""
    level: str = "all"

    def select(self, lines: Sequence[LogLine]) -> tuple[LogLine, ...]:
        """Return the lines that are shown, in order."""
        tones, words = _TONES_SHOWN[self.level], self.text.lower().split()
        if self == LogFilter():
            return tuple(lines)
        return tuple(x for x in lines if x.tone in tones and all(word in x.text.lower() for word in words))


def clock(at_seconds: float) -> str:
    """Return a time as it stands before a line."""
    return time.strftime("%H:%M:%S", time.localtime(at_seconds))


def as_text(lines: Sequence[LogLine]) -> str:
    """Return lines as text, each with its time."""
    return "\n".join(f"{clock(line.at_seconds)}\t{line.text}" for line in lines)
