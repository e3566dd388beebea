"""The pointer and the keys of a grid of cards."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ui.widgets.grid_card import Handler

if TYPE_CHECKING:
    from ui.widgets.card_grid import CardGrid

_DRAG_PX = 8  # the pointer moves so far before it drags
_EDGE_PX = 40  # at the upper and lower edge, dragging scrolls


@dataclass(slots=True)
class _Press:
    """A pressed button: where, on which card, whether it drags, and before which card it would drop."""

    x: int
    y: int
    number: int
    is_dragging: bool = False
    target: int = 0
    was_selected: bool = False


class GridInput:
    """Selects by click, Ctrl, Shift and arrows; opens, toggles, removes and moves through the handler."""

    def __init__(self, grid: CardGrid, handler: Handler) -> None:
        self._grid, self._handler, self._canvas = grid, handler, grid.canvas
        self._press: _Press | None = None
        self._bind()

    def _bind(self) -> None:
        canvas = self._canvas
        canvas.bind("<ButtonPress-1>", self._on_press)
        canvas.bind("<B1-Motion>", self._on_drag)
        canvas.bind("<ButtonRelease-1>", self._on_release)
        canvas.bind("<Double-Button-1>", self._double_clicked)
        canvas.bind("<Button-2>" if canvas.tk.call("tk", "windowingsystem") == "aqua" else "<Button-3>", self._menu)
        for key in ("Left", "Right", "Up", "Down", "Home", "End", "Prior", "Next"):
            canvas.bind(f"<{key}>", partial(self._arrow, key, False))
            canvas.bind(f"<Shift-{key}>", partial(self._arrow, key, True))
        for key, by in (("Left", -1), ("Right", 1)):
            canvas.bind(f"<Alt-{key}>", partial(self._move_by_key, by))
        canvas.bind("<Return>", lambda _e: self._on_current(self._handler.open_card))
        canvas.bind("<space>", lambda _e: self._on_selection(self._handler.toggle))
        canvas.bind("<Delete>", lambda _e: self._on_selection(self._handler.remove))
        canvas.bind("<Control-a>", self._select_all)

    def _on_press(self, event: tk.Event[Any]) -> None:
        self._canvas.focus_set()
        number = self._grid.number_at(event.x, event.y)
        state = int(event.state)
        if number is None:
            self._grid.select(())
            return
        if self._grid.is_on_switch(number, event.x, event.y):
            self._handler.toggle([number])
            return
        self._press = _Press(event.x, event.y, number, was_selected=number in self._grid.selection)
        if state & 0x1:
            self._grid.select_to(number)
        elif state & 0x4:
            self._grid.selection ^= {number}
            self._grid.current = self._grid.range_start = number
        elif number not in self._grid.selection:
            self._grid.selection = {number}
            self._grid.current = self._grid.range_start = number
        self._grid.draw_soon()
        self._handler.selected()

    def _on_drag(self, event: tk.Event[Any]) -> None:
        press = self._press
        if press is None:
            return
        if abs(event.x - press.x) + abs(event.y - press.y) > self._grid.theme.px(_DRAG_PX):
            press.is_dragging = True
        if press.is_dragging:
            edge = self._grid.theme.px(_EDGE_PX)
            if event.y < edge:
                self._grid.scroll(-edge // 4)
            elif event.y > self._canvas.winfo_height() - edge:
                self._grid.scroll(edge // 4)
            press.target = self._grid.drop_before = self._grid.gap_at(event.x, event.y)
            self._grid.draw_soon()

    def _on_release(self, event: tk.Event[Any]) -> None:
        press, self._press = self._press, None
        self._grid.drop_before = None
        if press is None:
            return
        if press.is_dragging:
            self._handler.move(sorted(self._grid.selection | {press.number}), press.target)
        elif press.was_selected and not int(event.state) & 0x5 and self._grid.selection != {press.number}:
            self._grid.select([press.number], is_seen=False)
        self._grid.draw_soon()

    def _double_clicked(self, event: tk.Event[Any]) -> None:
        number = self._grid.number_at(event.x, event.y)
        self._press = None
        if number is None:
            return
        if self._grid.is_on_switch(number, event.x, event.y):  # two clicks
            self._handler.toggle([number])
        else:
            self._handler.open_card(number)

    def _menu(self, event: tk.Event[Any]) -> None:
        number = self._grid.number_at(event.x, event.y)
        if number is not None:
            if number not in self._grid.selection:
                self._grid.select([number], is_seen=False)
            self._handler.open_menu(number, event)

    def _arrow(self, key: str, is_extending: bool, _event: object) -> str:
        if self._grid.cards:
            number = self._grid.layout().go(self._grid.current, key, self._canvas.winfo_height())
            if is_extending:
                self._grid.select_to(number)
                self._grid.see(number)
                self._handler.selected()
            else:
                self._grid.select([number])
        return "break"

    def _move_by_key(self, by: int, _event: object) -> str:
        if self._grid.selection:
            chosen = sorted(self._grid.selection)
            self._handler.move(chosen, max(0, chosen[0] - 1) if by < 0 else min(len(self._grid.cards), chosen[-1] + 2))
        return "break"

    def _on_current(self, act: Callable[[int], object]) -> str:
        if self._grid.cards:
            act(self._grid.current)
        return "break"

    def _on_selection(self, act: Callable[[Sequence[int]], object]) -> str:
        if self._grid.selection:
            act(sorted(self._grid.selection))
        return "break"

    def _select_all(self, _event: object) -> str:
        self._grid.selection = set(range(len(self._grid.cards)))
        self._grid.draw_soon()
        self._handler.selected()
        return "break"
