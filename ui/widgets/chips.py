"""Tags as chips in rows: a click on the cross removes one, dragging or the arrow keys move it."""

from __future__ import annotations

import tkinter as tk
import tkinter.font as tkfont
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ui.widgets.auto_bar import AutoBar
from ui.widgets.panel import Panel
from ui.widgets.theme import Theme

_HEIGHT_PX, _GAP_PX, _PAD_PX, _CROSS_PX = 24, 5, 8, 16


@dataclass(frozen=True, slots=True)
class _Place:
    left: int
    top: int
    right: int


class Chips(Panel):
    """Call `show` with tags. `on_remove(index)` and `on_move(index, to)` change them; `hint` is shown without any."""

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        *,
        on_remove: Callable[[int], object],
        on_move: Callable[[int, int], object],
    ) -> None:
        super().__init__(master, theme, "card")
        self.tags: Sequence[str] = ()
        self.selected = -1
        self.hint = ""
        self._on_remove, self._on_move = on_remove, on_move
        self._places: list[_Place] = []
        self._top = 0
        self._dragged_to = -1
        self.canvas = tk.Canvas(self, highlightthickness=0, borderwidth=0, height=theme.px(120), width=1)
        self.canvas.configure(takefocus=True)
        self._bar = AutoBar(self, theme, self._scroll_by_bar, on="card")
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        self.canvas.grid(row=0, column=0, sticky="nsew")
        self._bar.grid(row=0, column=1, sticky="ns")
        canvas = self.canvas
        canvas.bind("<Configure>", lambda _e: self.draw())
        canvas.bind("<Button-1>", self._pressed)
        canvas.bind("<B1-Motion>", self._dragged)
        canvas.bind("<ButtonRelease-1>", self._released)
        for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
            canvas.bind(sequence, self._wheel)
        for sequence, by in (("<Left>", -1), ("<Right>", 1)):
            canvas.bind(sequence, lambda _e, by=by: self._select(self.selected + by))  # type: ignore[misc]
            key = f"<Control-{sequence[1:]}"
            canvas.bind(key, lambda _e, by=by: self._shift(by))  # type: ignore[misc]
        for key in ("<Delete>", "<BackSpace>"):
            canvas.bind(key, lambda _e: self._remove(self.selected))
        canvas.bind("<FocusIn>", lambda _e: self._select(max(0, self.selected)))
        canvas.bind("<FocusOut>", lambda _e: self.draw())
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        super().apply_theme()
        if hasattr(self, "canvas"):
            self.canvas.configure(background=self.theme.colour("card"))
            self.draw()

    def show(self, tags: Sequence[str], hint: str = "") -> None:
        """Show other tags."""
        if (tags, hint) != (self.tags, self.hint):
            self.tags, self.hint = tags, hint
            self.selected = min(self.selected, len(tags) - 1)
            self.draw()

    def draw(self) -> None:
        """Draw all chips."""
        canvas, theme = self.canvas, self.theme
        canvas.delete("all")
        width, height = canvas.winfo_width(), canvas.winfo_height()
        if width <= 1:
            return
        if not self.tags:
            canvas.create_text(
                2, 4, text=self.hint, anchor="nw", width=width - 4, fill=theme.colour("faint"),
                font=theme.font("small"),
            )  # fmt: skip
        self._places = self._lay_out(width)
        whole = self._places[-1].top + theme.px(_HEIGHT_PX) if self._places else 0
        self._top = max(0, min(self._top, whole - height))
        self._bar.set(self._top / max(1, whole), min(1.0, (self._top + height) / max(1, whole)))
        has_focus = str(canvas.tk.call("focus")) == str(canvas)
        for index, place in enumerate(self._places):
            self._draw_chip(index, place, is_marked=index == self.selected and has_focus)

    def place_of(self, index: int, *, cross: bool = False) -> tuple[int, int]:
        """Return the middle of a chip, or of its cross, in the canvas."""
        place, px = self._places[index], self.theme.px
        x = place.right - px(_CROSS_PX) // 2 if cross else (place.left + place.right - px(_CROSS_PX)) // 2
        return x, place.top - self._top + px(_HEIGHT_PX) // 2

    def _lay_out(self, width: int) -> list[_Place]:
        px, font = self.theme.px, tkfont.Font(self.canvas, font=self.theme.font("small"))
        places, left, top = [], 0, 0
        for tag in self.tags:
            length = min(width, font.measure(tag) + px(2 * _PAD_PX + _CROSS_PX - 4))
            if left and left + length > width:
                left, top = 0, top + px(_HEIGHT_PX + _GAP_PX)
            places.append(_Place(left, top, left + length))
            left += length + px(_GAP_PX)
        return places

    def _draw_chip(self, index: int, place: _Place, *, is_marked: bool) -> None:
        canvas, theme, px = self.canvas, self.theme, self.theme.px
        top, bottom = place.top - self._top, place.top - self._top + px(_HEIGHT_PX)
        is_target = index == self._dragged_to
        canvas.create_rectangle(
            place.left, top, place.right - 1, bottom, fill=theme.colour("selection" if is_marked else "field"),
            outline=theme.colour("accent" if is_marked or is_target else "field_border"),
        )  # fmt: skip
        middle = (top + bottom) / 2
        canvas.create_text(
            place.left + px(_PAD_PX), middle, text=self._fit_text(index, place), anchor="w", fill=theme.colour("text"),
            font=theme.font("small"),
        )  # fmt: skip
        canvas.create_text(
            place.right - px(_CROSS_PX) // 2 - 1, middle, text="×", fill=theme.colour("muted"), font=theme.font("small")
        )

    def _fit_text(self, index: int, place: _Place) -> str:
        room = (place.right - place.left - self.theme.px(_PAD_PX + _CROSS_PX)) // self.theme.px(6)
        tag = self.tags[index]
        return tag if place.right < self.canvas.winfo_width() or len(tag) <= room else f"{tag[: max(1, room - 1)]}…"

    def _index_at(self, event: tk.Event[Any]) -> int:
        y, height = event.y + self._top, self.theme.px(_HEIGHT_PX)
        hits = (i for i, p in enumerate(self._places) if p.left <= event.x < p.right and p.top <= y < p.top + height)
        return next(hits, -1)

    def _pressed(self, event: tk.Event[Any]) -> None:
        self.canvas.focus_set()
        index = self._index_at(event)
        if index >= 0 and event.x >= self._places[index].right - self.theme.px(_CROSS_PX):
            self._remove(index)
            self.selected = -1
        else:
            self._select(index)

    def _dragged(self, event: tk.Event[Any]) -> None:
        index = self._index_at(event)
        if self.selected >= 0 and index >= 0 and index != self._dragged_to:
            self._dragged_to = index
            self.draw()

    def _released(self, _event: object) -> None:
        index, to, self._dragged_to = self.selected, self._dragged_to, -1
        if index >= 0 and to not in (-1, index):
            self.selected = to
            self._on_move(index, to)
        self.draw()

    def _select(self, index: int) -> str:
        self.selected = min(len(self.tags) - 1, max(-1, index))
        self.draw()
        return "break"

    def _shift(self, by: int) -> str:
        index, to = self.selected, self.selected + by
        if index >= 0 and 0 <= to < len(self.tags):
            self.selected = to
            self._on_move(index, to)
        return "break"

    def _remove(self, index: int) -> str:
        if 0 <= index < len(self.tags):
            self._on_remove(index)
        return "break"

    def _wheel(self, event: tk.Event[Any]) -> str:
        self._top += (-1 if event.num == 4 or event.delta > 0 else 1) * self.theme.px(_HEIGHT_PX)
        self.draw()
        return "break"

    def _scroll_by_bar(self, kind: str, amount: Any, _unit: str = "") -> None:
        whole = self._places[-1].top + self.theme.px(_HEIGHT_PX) if self._places else 0
        step = self.theme.px(_HEIGHT_PX)
        self._top = int(float(amount) * whole) if kind == "moveto" else self._top + int(amount) * step
        self.draw()
