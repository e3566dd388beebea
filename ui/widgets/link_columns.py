"""Links with explanations under headings, in columns on a canvas; by pointer and by keys."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ui.widgets.fitted_text import FittedTexts
from ui.widgets.theme import PAD, Theme

_HEADING, _LINE, _DETAIL, _GAP = 24, 20, 15, 5
_BETWEEN_GROUPS = 10
_MAX_COLUMNS = 3  # columns, as of a form
_NARROW_PX, _MAX_NARROW = 220, 8  # without details


@dataclass(frozen=True, slots=True)
class Link:
    """A link: its key, its text, and what it leads to, in a sentence."""

    key: str
    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """A heading or a link with the place of its top left corner, and the lines of its detail."""

    x: int
    y: int
    heading: str = ""
    link: Link | None = None
    detail: str = ""


Groups = Sequence[tuple[str, Sequence[Link]]]


def place_links(
    groups: Groups, num_columns: int, column_px: int, px: Callable[[float], int], wrapped: Callable[[str], list[str]]
) -> tuple[list[PlacedItem], int]:
    """Return the places of all headings and links, in columns of about equal height, and the height of the highest.

    A group continues in the next column, below its heading. `wrapped(detail)` returns the lines of a detail.
    """
    rows = [(title, link, wrapped(link.detail)) for title, links in groups for link in links]
    row_px = [px(_LINE) + len(lines) * px(_DETAIL) + px(_GAP) for _, _, lines in rows]
    total = sum(row_px) + len(groups) * px(_HEADING + _BETWEEN_GROUPS)
    goal, placed, column, y, highest, last = total / num_columns, [], 0, 0, 0, ""
    for (title, link, lines), height in zip(rows, row_px, strict=True):
        is_new = title != last
        if y and y + height / 2 > goal and column + 1 < num_columns:
            column, y, is_new = column + 1, 0, True
        if is_new:
            y += px(_BETWEEN_GROUPS) if y else 0
            is_repeated = title == last and len(groups) == 1  # a single one is not repeated
            placed.append(PlacedItem(column * column_px, y, heading="" if is_repeated else title))
            y, last = y + px(_HEADING), title
        placed.append(PlacedItem(column * column_px, y, link=link, detail="\n".join(lines)))
        y += height
        highest = max(highest, y)
    return placed, highest


class LinkColumns(tk.Canvas):
    """Call `show`; a click, or Return on the marked link, calls `on_open(key)`."""

    def __init__(self, master: tk.Misc, theme: Theme, on_open: Callable[[str], object], *, min_column_px: int) -> None:
        super().__init__(master, highlightthickness=0, borderwidth=0, width=1, height=1, takefocus=True, cursor="hand2")
        self.theme = theme
        self.placed: list[PlacedItem] = []
        self._on_open = on_open
        self._min_column_px = theme.px(min_column_px)
        self._column_px = 1
        self._widths: dict[str, int] = {}  # of words, in pixels
        self._texts = FittedTexts(self, theme)
        self._marked = -1
        self.bind("<Motion>", lambda event: self._mark(self._at(event)))
        self.bind("<Leave>", lambda _e: self._mark(-1))
        self.bind("<FocusOut>", lambda _e: self._mark(-1))
        self.bind("<Button-1>", self._clicked)
        self.bind("<FocusIn>", lambda _e: self._step(1))
        for key, by in (("<Down>", 1), ("<Up>", -1)):
            self.bind(key, lambda _e, by=by: self._step(by))  # type: ignore[misc]
        for key in ("<Return>", "<space>"):
            self.bind(key, lambda _e: self._open(self._marked))
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        self.configure(background=self.theme.colour("card"))
        self._draw()

    def show(self, groups: Groups, width: int, room: int) -> bool:
        """Show links in a width, with details if all fit into the height `room`; return whether they fit at all."""
        gap, self.placed = self.theme.px(PAD), []
        tries = (
            (self.theme.px(_NARROW_PX), _MAX_NARROW, lambda _detail: list[str]()),
            (self._min_column_px, _MAX_COLUMNS, self._wrap),
        )
        for least_px, most, wrapped in tries:
            num_columns = max(1, min(most, (width + gap) // (least_px + gap)))
            column_px, before = (width + gap) // num_columns, self._column_px
            self._column_px = column_px
            placed, height = place_links(groups, num_columns, column_px, self.theme.px, wrapped)
            if height > room:
                self._column_px = before
                break
            self.placed = placed
            self.configure(height=height)
        self._draw()
        return bool(self.placed)

    def _wrap(self, detail: str) -> list[str]:
        """Return a detail in lines that fit the column."""
        room = self._column_px - self.theme.px(PAD)
        lines, width = [""], 0
        for word in detail.split():
            word_px = self._width_of(f"{word} ")
            if lines[-1] and width + word_px > room:
                lines, width = [*lines, word], word_px
            else:
                lines[-1], width = f"{lines[-1]} {word}".strip(), width + word_px
        return lines

    def _width_of(self, word: str) -> int:
        if word not in self._widths:
            self._widths[word] = int(self.tk.call("font", "measure", self.theme.font("small"), word))
        return self._widths[word]

    def _draw(self) -> None:
        self.delete("all")
        self._marked = -1
        px, colour, font = self.theme.px, self.theme.colour, self.theme.font
        room = self._column_px - px(PAD)
        for number, place in enumerate(self.placed):
            x, y = place.x, place.y
            if place.link is None:
                self.create_text(x, y, text=place.heading, anchor="nw", fill=colour("faint"), font=font("small"))
                continue
            tag = f"link{number}"
            text = self._texts.fit(place.link.text, "body", room)
            self.create_text(x, y, text=text, anchor="nw", fill=colour("label"), font=font("body"), tags=tag)
            for row, words in enumerate(place.detail.splitlines()):
                top, line = y + px(_LINE - 2) + row * px(_DETAIL), self._texts.fit(words, "small", room)
                self.create_text(x, top, text=line, anchor="nw", fill=colour("muted"), font=font("small"))

    def _at(self, event: tk.Event[Any]) -> int:
        """Return the number of the link under the pointer; -1 for none."""
        column = event.x // self._column_px * self._column_px
        above = [n for n, p in enumerate(self.placed) if p.x == column and p.y <= event.y]
        last = above[-1] if above else -1
        return last if last >= 0 and self.placed[last].link is not None else -1

    def _mark(self, number: int) -> None:
        if number != self._marked:
            for which, token in ((self._marked, "label"), (number, "accent")):
                self.itemconfigure(f"link{which}", fill=self.theme.colour(token))
            self._marked = number

    def _step(self, by: int) -> None:
        links = [n for n, place in enumerate(self.placed) if place.link is not None]
        if links:
            here = links.index(self._marked) if self._marked in links else (-1 if by > 0 else len(links))
            self._mark(links[min(max(here + by, 0), len(links) - 1)])

    def _clicked(self, event: tk.Event[Any]) -> None:
        self._open(self._at(event))

    def _open(self, number: int) -> None:
        link = self.placed[number].link if 0 <= number < len(self.placed) else None
        if link is not None:
            self._on_open(link.key)
