"""A form: cards of field groups in as many columns as fit, built in slices so that the window stays responsive."""

from __future__ import annotations

import math
import tkinter as tk
import tkinter.font as tkfont
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from modules.settings.field import FieldRecord
from ui.forms.binding import explanation
from ui.forms.context import Context
from ui.forms.fields import Row
from ui.forms.group_card import GroupCard
from ui.forms.records import Group
from ui.widgets.panel import Panel, Text
from ui.widgets.scroll import scroll_to
from ui.widgets.theme import PAD

MIN_COLUMN_WIDTH = 400
MAX_COLUMNS = 3


class FormView(Panel):
    """The cards of some groups of fields; `groups()` returns the current ones.

    `empty_note()` is shown while no card has a visible row. With `has_all_levels` advanced fields are always shown.
    `room()` is the height that is free for the form: if it is enough, each field has its explanation below it.
    """

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        groups: Callable[[], tuple[Group, ...]],
        *,
        max_columns: int = MAX_COLUMNS,
        empty_note: Callable[[], str] = lambda: "",
        has_all_levels: bool = False,
        room: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(master, context.theme, "window")
        self.cards: list[GroupCard] = []
        self._leaving: list[GroupCard] = []  # those of the groups before
        self.is_complete = False
        self._is_outdated = False  # the config has changed while the cards were built
        self._context = context
        self._groups_now = groups
        self._max_columns = max_columns
        self._has_all_levels = has_all_levels
        self._room = room
        self._is_explained = False
        self._widths: dict[str, float] = {}  # of explanations, in design pixels
        self._groups: tuple[Group, ...] = ()
        self._columns: list[Panel] = []
        self._shape: tuple[Any, ...] = ()
        self._once_placed: list[Callable[[], object]] = []
        self._note = empty_note
        self.empty_note = Text(self, context.theme, "", colour="muted")
        self._unsubscribe = (
            context.form.changed.subscribe(self._follow_change),
            context.form.loaded.subscribe(self._show_by_level),
            context.preferences.changed.subscribe(self._show_by_level),
            context.field_problems.changed.subscribe(self._refresh_problems),
        )
        # Not at once: Tk calls this while it places children, when none of them may be moved.
        self.bind("<Configure>", lambda _e: context.pump.redraw_soon((self, "width"), self._arrange))

    def build(self) -> None:
        """Build the cards: the first rows now, the others over the next turns of the pump."""
        self._context.pump.work_through(self, self._build())

    def finish(self) -> None:
        """Build the remaining rows now."""
        self._context.pump.finish(self)

    def rows(self) -> Iterator[Row]:
        """Yield the rows built so far."""
        for card in self.cards:
            yield from card.rows.values()

    def reveal(self, path: str) -> Row | None:
        """Show the field at a path regardless of its level, focus it and scroll to it; return its row if it exists."""
        self.finish()
        row = next((card_row for card in self.cards if (card_row := card.force(path)) is not None), None)
        if row is not None:
            self._arrange()
            row.flash()
            row.control.focus()
            control = row.control.frame
            # The focus does not, if the field had it last.
            self.once_placed(lambda: scroll_to(control) if control.winfo_exists() else None)
        return row

    def once_placed(self, call: Callable[[], object]) -> None:
        """Call a function when the cards are in their columns; they wait for the width of a page that opens."""
        if self._shape:
            call()
        else:
            self._once_placed.append(call)

    def destroy(self) -> None:
        """Also unsubscribe from the models."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self.unbind("<Configure>")  # the cards change its size while they go
        self._context.pump.forget(self)
        self._context.pump.forget((self, "width"))
        for card in self.cards:
            card.close()
        self.cards.clear()
        super().destroy()

    def _build(self) -> Iterator[None]:
        self._groups, self._is_outdated = self._groups_now(), False
        for group in self._groups:
            card = self._make_card(group)
            self.cards.append(card)
            self._arrange()
            yield from card.build()
        self.is_complete = True
        self._arrange()
        self._context.field_problems.check()
        if self._is_outdated:
            self._follow_change()
        while self._leaving:
            yield from self._leaving[-1].destroy()
            self._leaving.pop()

    def _make_card(self, group: Group) -> GroupCard:
        return GroupCard(self, self._context, group, has_all_levels=self._has_all_levels)

    def _refresh_problems(self) -> None:
        for row in self.rows():
            row.refresh_problem()

    def _follow_change(self) -> None:
        self._context.pump.redraw_soon(self, self._follow)

    def _show_by_level(self) -> None:
        for card in self.cards:
            card.show_by_level()
        self._follow_change()

    def _follow(self) -> None:
        """Update the form to the config: parts, variants, relevant fields."""
        if not self.is_complete:
            self._is_outdated = True
            return
        if self._groups_now() != self._groups:
            for card in self.cards:
                card.leave()
            self._leaving += self.cards
            self.cards.clear()
            self.is_complete = False
            self.build()
            return
        for card in self.cards:
            card.update()
        self._arrange()

    def _arrange(self) -> None:
        """Distribute the cards over columns of about equal height; cards without visible rows are left out."""
        width = self.winfo_width()
        num_fitting = width // self._context.theme.px(MIN_COLUMN_WIDTH)
        num_columns = max(1, min(self._max_columns, num_fitting, len(self._groups)))
        counts = tuple(card.num_rows_shown() for card in self.cards)
        room = self._room() if self._room is not None else 0
        note = self._note() if self.is_complete and not any(counts) else ""
        shape = (num_columns, counts, tuple(card.group.key for card in self.cards), self.is_complete, width, room, note)
        if shape == self._shape or width <= 1:
            return
        self._shape = shape
        self._set_columns(num_columns)
        self._show_empty_note(note)
        places = self._places(num_columns, width, room)
        for card, num_rows, column in zip(self.cards, counts, places, strict=True):
            card.card.pack_forget()
            if num_rows:
                card.place_in(self._columns[column])
        for panel in self._columns:
            if not panel.pack_slaves():
                panel.configure(height=1)  # Tk would keep the height that the cards had
        if self.is_complete:
            waiting, self._once_placed = self._once_placed, []
            for call in waiting:
                call()

    def _places(self, num_columns: int, width: int, room: int) -> list[int]:
        """Return the column of each card; show the explanations if all of them fit."""
        scale = self._context.theme.scale
        column_width = (width / scale - PAD * (num_columns - 1)) / num_columns

        def places(*, is_explained: bool) -> tuple[list[int], float]:
            return distribute(
                (self._height(c, column_width, is_explained=is_explained) for c in self.cards), num_columns
            )

        columns, height = places(is_explained=True)
        is_explained = self.is_complete and height * scale <= room
        if is_explained != self._is_explained and self.is_complete:
            self._is_explained = is_explained
            for card in self.cards:
                card.explain(is_explained)
        return columns if self._is_explained else places(is_explained=False)[0]

    def _height(self, card: GroupCard, width: float, *, is_explained: bool) -> float:
        records = card.records_shown()
        texts = [explanation(record) for record in records] if is_explained else []
        return card_height(records, card.num_preview_rows, texts, width=width, measure=self._measure)

    def _measure(self, text: str) -> float:
        if text not in self._widths:
            font = tkfont.Font(self, font=self._context.theme.font("small"))
            self._widths[text] = font.measure(text) / self._context.theme.scale
        return self._widths[text]

    def _show_empty_note(self, note: str) -> None:
        self.empty_note.set_text(note)
        if note:
            self.empty_note.grid(row=1, column=0, columnspan=2 * self._max_columns, sticky="w", pady=(0, PAD))
        else:
            self.empty_note.grid_remove()

    def _set_columns(self, count: int) -> None:
        while len(self._columns) < self._max_columns:
            self._columns.append(Panel(self, self._context.theme, "window", height=1))
        for index, column in enumerate(self._columns):
            is_used = index < count
            self.columnconfigure(2 * index, weight=1 if is_used else 0, uniform="form" if is_used else "")
            self.columnconfigure(2 * index + 1, minsize=self._context.theme.px(PAD) if index + 1 < count else 0)
            if is_used:
                column.grid(row=0, column=2 * index, sticky="new")
            else:
                column.grid_remove()


ROW, TALL_ROW, HEADING, GAP = 38.0, 84.0, 60.0, 16.0  # design pixels; the heading has the card's margins
_LINE, _BELOW, _MARGINS = 15.0, 6.0, 52.0  # of an explanation: a line, the distance below, the card's margins
_WORTH = 60.0  # how much lower a column must become for a card to leave the order

Measure = Callable[[str], float]


def card_height(
    records: Sequence[FieldRecord],
    num_preview_rows: int,
    explanations: Sequence[str],
    *,
    width: float,
    measure: Measure,
) -> float:
    """Return the height of a card in design pixels; 0 if it shows nothing.

    `explanations` are the texts below its rows, if there are any, and `measure(text)` returns the width of one line.
    """
    if not records:
        return 0.0
    rows = sum(TALL_ROW if record.setting.multiline else ROW for record in records)
    room = max(1.0, width - _MARGINS)
    lines = sum(math.ceil(measure(text) / room) * _LINE + _BELOW for text in explanations if text)
    return HEADING + GAP + rows + num_preview_rows * ROW + lines


def distribute(heights: Iterable[float], num_columns: int) -> tuple[list[int], float]:
    """Return the column of each card, and the height of the highest column.

    Each card is in the column that is lowest when it comes; then cards leave the highest one as long as that makes it
    clearly lower. A card without height is in the first column and takes no room.
    """
    sizes, columns, places = list(heights), [0.0] * num_columns, []
    for height in sizes:
        column = columns.index(min(columns)) if height else 0
        columns[column] += height
        places.append(column)
    while (move := _best_move(sizes, columns, places)) is not None:
        card, to = move
        columns[places[card]] -= sizes[card]
        columns[to] += sizes[card]
        places[card] = to
    return places, max(columns)


def _best_move(sizes: Sequence[float], columns: Sequence[float], places: Sequence[int]) -> tuple[int, int] | None:
    """Return a card of the highest column, and where it goes, so that both become as low as possible.

    The first card of a column stays: the first ones are the most important.
    """
    highest, lowest = columns.index(max(columns)), columns.index(min(columns))
    in_highest = [card for card, place in enumerate(places) if place == highest and sizes[card]]
    moves = [(max(columns[highest] - sizes[card], columns[lowest] + sizes[card]), card) for card in in_highest[1:]]
    height, card = min(moves, default=(columns[highest], 0))
    return (card, lowest) if height < columns[highest] - _WORTH else None
