"""A grid of cards on a canvas: an image, a title with a switch, and lines of text. Only visible cards are drawn."""

from __future__ import annotations

import tkinter as tk
import tkinter.font as tkfont
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ui.run.pump import Pump
from ui.theme import RADIUS, Theme
from ui.widgets.auto_bar import AutoBar
from ui.widgets.canvas_batch import CanvasBatch
from ui.widgets.drawn import Shapes
from ui.widgets.grid_places import GridPlaces
from ui.widgets.panel import Panel
from ui.widgets.photos import Load, Photos

_MAX_KEPT = 200
_WHEEL_PX = 72
_MIN_CARD_PX, _GAP_PX, _INSET_PX = 196, 12, 8
_IMAGE_SHARE = 0.62  # of the width
_TEXT_PX = 92  # below the image
_SWITCH_PX = (30, 16)
_BAR_PX = 4
_DRAG_PX = 8  # the pointer moves so far before it drags
_EDGE_PX = 40  # at the upper and lower edge, dragging scrolls


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text in the colour of a token."""

    text: str
    colour: str = "muted"


@dataclass(frozen=True, slots=True)
class GridCard:
    """A card. `image` is the key of its image, as `load` takes it; `note` stands in its place where there is none.

    `share` is drawn as a thin bar below the first line; None draws none.
    """

    title: str
    is_on: bool
    lines: tuple[Line, ...] = ()
    share: float | None = None
    image: Hashable = None
    note: str = ""


class Handler(Protocol):
    """What a grid calls. Cards are given by their number."""

    def open_card(self, number: int) -> object:
        """Open a card."""

    def toggle(self, numbers: Sequence[int]) -> object:
        """Switch cards on or off."""

    def remove(self, numbers: Sequence[int]) -> object:
        """Remove cards."""

    def move(self, numbers: Sequence[int], before: int) -> object:
        """Move cards before another one; the number of cards stands for the end."""

    def selected(self) -> object:
        """Called after another selection."""

    def pointed_at(self, number: int | None, event: tk.Event[Any]) -> object:
        """Called when the pointer reaches another card; None for none."""

    def open_menu(self, number: int, event: tk.Event[Any]) -> object:
        """Open the menu of a card."""


@dataclass(slots=True)
class _Press:
    """A pressed button: where, on which card, whether it drags, and before which card it would drop."""

    x: int
    y: int
    number: int
    is_dragging: bool = False
    target: int = 0
    was_selected: bool = field(default=False)


class CardGrid(Panel):
    """Call `show` with cards. Click, Ctrl, Shift and arrows select; Return opens; Space toggles; dragging reorders."""

    def __init__(
        self, master: tk.Misc, theme: Theme, pump: Pump, handler: Handler, load: Load, *, on: str = "window"
    ) -> None:
        super().__init__(master, theme, on)
        self.cards: Sequence[GridCard] = ()
        self.selection: set[int] = set()
        self.current = 0
        self.canvas = tk.Canvas(
            self, highlightthickness=0, borderwidth=0, takefocus=True, width=theme.px(200), height=theme.px(120)
        )
        self._pump, self._handler = pump, handler
        self._top = 0
        self._hovered: int | None = None
        self._press: _Press | None = None
        self._anchor = 0
        self._fonts: dict[str, tkfont.Font] = {}
        self._cut: dict[tuple[str, str, int], str] = {}
        self._shapes = Shapes(self.canvas, theme)
        self._photos = Photos(self.canvas, pump, self.draw_soon, most=_MAX_KEPT, load=load)
        self._bar = AutoBar(self, theme, self._scroll_by_bar, on=on)
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        self.canvas.grid(row=0, column=0, sticky="nsew")
        self._bar.grid(row=0, column=1, sticky="ns")
        self._bind()
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        super().apply_theme()
        if hasattr(self, "canvas"):
            self.canvas.configure(background=self.theme.colour(self.token))
            self._shapes.forget()
            self.draw_soon()

    def show(self, cards: Sequence[GridCard]) -> None:
        """Show other cards; images that are already loaded are reused."""
        if len(cards) != len(self.cards):
            self.selection = {n for n in self.selection if n < len(cards)}
            self.current = max(0, min(self.current, len(cards) - 1))
        self.cards = cards
        self.draw_soon()

    def select(self, numbers: Sequence[int], *, is_seen: bool = True) -> None:
        """Select cards, and scroll to the first of them."""
        self.selection = {n for n in numbers if n < len(self.cards)}
        if self.selection:
            self.current = self._anchor = min(self.selection)
            if is_seen:
                self.see(self.current)
        self.draw_soon()
        self._handler.selected()

    def see(self, number: int) -> None:
        """Scroll as little as needed to bring a card into view."""
        places = self.places()
        top = places.top_of(number)
        lowest = top + places.card_height + places.gap - self.canvas.winfo_height()
        self._top = min(top - min(places.gap, top), max(self._top, lowest))
        self.draw_soon()

    @property
    def in_sight(self) -> range:
        """The numbers of the visible cards."""
        return self.places().in_sight(self._top, self.canvas.winfo_height())

    def places(self) -> GridPlaces:
        """Return where the cards are."""
        px = self.theme.px
        return GridPlaces.fitting(
            len(self.cards), self.canvas.winfo_width(), min_px=px(_MIN_CARD_PX), gap_px=px(_GAP_PX),
            text_px=px(_TEXT_PX), image_share=_IMAGE_SHARE,
        )  # fmt: skip

    def centre_of(self, number: int) -> tuple[int, int]:
        """Return the middle of a card on the canvas."""
        places = self.places()
        x, y = places.corner(number)
        return x + places.card_width // 2, y - self._top + places.card_height // 2

    def switch_of(self, number: int) -> tuple[int, int]:
        """Return the middle of a card's switch on the canvas."""
        return self._switch_place(number, self.places())

    def _switch_place(self, number: int, places: GridPlaces) -> tuple[int, int]:
        x, y = places.corner(number)
        width, height = map(self.theme.px, _SWITCH_PX)
        inset = self.theme.px(_INSET_PX)
        return (
            x + places.card_width - inset - self.theme.px(2) - width // 2,
            y - self._top + inset + places.image_height + self.theme.px(8) + height // 2,
        )

    def draw_soon(self) -> None:
        """Draw on the next turn of the pump."""
        self._pump.redraw_soon(self, self.draw)

    def draw(self) -> None:
        """Draw the visible cards."""
        canvas = self.canvas
        height, places = canvas.winfo_height(), self.places()
        if height <= 1:
            return  # not on the screen yet
        self._top = max(0, min(self._top, places.height - height))
        needed = max(1, places.height)
        self._bar.set(self._top / needed, min(1.0, (self._top + height) / needed))
        in_sight = places.in_sight(self._top, height)
        size = self._image_key(places)
        self._photos.load_only({(self.cards[n].image, size) for n in in_sight})
        has_focus = canvas.focus_get() is canvas
        batch = CanvasBatch(canvas)
        for number in in_sight:
            self._draw_card(batch, number, places, is_current=has_focus and number == self.current)
        if self._press is not None and self._press.is_dragging:
            self._draw_target(batch, places)
        batch.draw()

    def destroy(self) -> None:
        """Also cancel the images that are still being loaded."""
        self._photos.close()
        self._shapes.forget()
        self._pump.forget(self)
        super().destroy()

    # -- drawing

    def _image_key(self, places: GridPlaces) -> int:
        """Return the size of an image as one number, for the key of its photo."""
        return (places.card_width - 2 * self.theme.px(_INSET_PX)) << 16 | places.image_height

    def _draw_card(self, batch: CanvasBatch, number: int, places: GridPlaces, *, is_current: bool) -> None:
        card, px = self.cards[number], self.theme.px
        x, y = places.corner(number)
        y -= self._top
        inset = px(_INSET_PX)
        fill = "selection" if number in self.selection else "field_hover" if number == self._hovered else "card"
        line, line_px = ("accent", px(2)) if is_current else ("", 0)
        plate = self._shapes.plate(
            places.card_width, places.card_height, px(RADIUS), fill=fill, on=self.token, line=line, line_px=line_px
        )
        batch.add("image", x, y, image=plate, anchor="nw", tags="card")
        self._draw_image(batch, card, x + inset, y + inset, places)
        width, height = map(px, _SWITCH_PX)
        switch = self._shapes.switch(width, height, is_on=card.is_on, on=fill)
        batch.add("image", *self._switch_place(number, places), image=switch)
        left, top = x + inset + px(2), y + inset + places.image_height + px(6)
        room = places.card_width - 2 * inset - px(4)
        self._write(batch, card.title, left, top, room - width - px(8), "strong", "text" if card.is_on else "faint")
        top += px(23)
        for index, text in enumerate(card.lines):
            self._write(batch, text.text, left, top, room, "small", text.colour if card.is_on else "faint")
            top += px(18)
            if index == 0 and card.share is not None:
                self._draw_share(batch, card, left, top, room)
                top += px(10)

    def _draw_image(self, batch: CanvasBatch, card: GridCard, x: int, y: int, places: GridPlaces) -> None:
        width, height = places.card_width - 2 * self.theme.px(_INSET_PX), places.image_height
        key = (card.image, self._image_key(places))
        photo = self._photos.get(key) if card.image else None
        if photo is not None:
            batch.add("image", x, y, image=photo, anchor="nw", tags="photo")
            return
        batch.add("rectangle", x, y, x + width, y + height, fill=self.theme.colour("field"), width=0)
        if card.image and key not in self._photos:
            self._photos.load(key)
            return
        batch.add(
            "text", x + width // 2, y + height // 2, text=card.note, width=width - self.theme.px(16), justify="center",
            fill=self.theme.colour("faint"), font=self.theme.font("small"),
        )  # fmt: skip

    def _draw_share(self, batch: CanvasBatch, card: GridCard, left: int, top: int, width: int) -> None:
        colour, height = self.theme.colour, self.theme.px(_BAR_PX)
        share = card.share or 0.0
        token = "track" if not card.is_on else "good" if share >= 1 else "warning"
        batch.add("rectangle", left, top, left + width, top + height, fill=colour("track"), width=0)
        if share > 0:
            filled = max(height, round(width * share))
            batch.add("rectangle", left, top, left + filled, top + height, fill=colour(token), width=0)

    def _draw_target(self, batch: CanvasBatch, places: GridPlaces) -> None:
        """Draw where the dragged cards would be dropped."""
        assert self._press is not None
        x, y = places.edge_before(self._press.target)
        batch.add(
            "line", x, y - self._top, x, y - self._top + places.card_height,
            fill=self.theme.colour("accent"), width=self.theme.px(4), capstyle="round", tags="target",
        )  # fmt: skip

    def _write(self, batch: CanvasBatch, text: str, x: int, y: int, room: int, role: str, token: str) -> None:
        batch.add(
            "text", x, y, text=self._fitted(text, role, room), anchor="nw",
            fill=self.theme.colour(token), font=self.theme.font(role), tags="text",
        )  # fmt: skip

    def _fitted(self, text: str, role: str, room: int) -> str:
        """Return a text, cut where it is longer than the room."""
        key = (text, role, room)
        if key not in self._cut:
            if len(self._cut) > 5000:
                self._cut.clear()
            font = self._fonts.setdefault(role, tkfont.Font(self.canvas, font=self.theme.font(role)))
            plain = " ".join(text.split())
            if font.measure(plain) > room:
                fitting = bisect_right(range(len(plain)), room, key=lambda n: font.measure(plain[:n] + "…"))
                plain = plain[: max(0, fitting - 1)].rstrip() + "…"
            self._cut[key] = plain
        return self._cut[key]

    # -- pointer

    def _bind(self) -> None:
        canvas = self.canvas
        # Not at once: Tk calls this while it places children, when none may be removed (the bar is).
        canvas.bind("<Configure>", lambda _e: self.draw_soon())
        canvas.bind("<ButtonPress-1>", self._pressed)
        canvas.bind("<B1-Motion>", self._dragged)
        canvas.bind("<ButtonRelease-1>", self._released)
        canvas.bind("<Double-Button-1>", self._double_clicked)
        canvas.bind("<Button-2>" if canvas.tk.call("tk", "windowingsystem") == "aqua" else "<Button-3>", self._menu)
        canvas.bind("<Motion>", self._moved)
        canvas.bind("<Leave>", self._left)
        for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
            canvas.bind(sequence, self._wheel)
        for sequence in ("<FocusIn>", "<FocusOut>"):
            canvas.bind(sequence, lambda _e: self.draw_soon())
        for key in ("Left", "Right", "Up", "Down", "Home", "End", "Prior", "Next"):
            canvas.bind(f"<{key}>", partial(self._arrow, key, False))
            canvas.bind(f"<Shift-{key}>", partial(self._arrow, key, True))
        for key, by in (("Left", -1), ("Right", 1)):
            canvas.bind(f"<Alt-{key}>", partial(self._move_by_key, by))
        canvas.bind("<Return>", lambda _e: self._on_current(self._handler.open_card))
        canvas.bind("<space>", lambda _e: self._on_selection(self._handler.toggle))
        canvas.bind("<Delete>", lambda _e: self._on_selection(self._handler.remove))
        canvas.bind("<Control-a>", self._select_all)

    def _card_at(self, x: int, y: int) -> int | None:
        return self.places().at(x, y + self._top)

    def _is_on_switch(self, number: int, x: int, y: int) -> bool:
        middle_x, middle_y = self.switch_of(number)
        width, height = map(self.theme.px, _SWITCH_PX)
        return abs(x - middle_x) <= width // 2 + 3 and abs(y - middle_y) <= height // 2 + 5

    def _pressed(self, event: tk.Event[Any]) -> None:
        self.canvas.focus_set()
        number = self._card_at(event.x, event.y)
        state = int(event.state)
        if number is None:
            self.select(())
            return
        if self._is_on_switch(number, event.x, event.y):
            self._handler.toggle([number])
            return
        self._press = _Press(event.x, event.y, number, was_selected=number in self.selection)
        if state & 0x1:
            self._select_to(number)
        elif state & 0x4:
            self.selection ^= {number}
            self.current = self._anchor = number
        elif number not in self.selection:
            self.selection = {number}
            self.current = self._anchor = number
        self.draw_soon()
        self._handler.selected()

    def _dragged(self, event: tk.Event[Any]) -> None:
        press = self._press
        if press is None:
            return
        if abs(event.x - press.x) + abs(event.y - press.y) > self.theme.px(_DRAG_PX):
            press.is_dragging = True
        if press.is_dragging:
            edge = self.theme.px(_EDGE_PX)
            if event.y < edge:
                self._top -= edge // 4
            elif event.y > self.canvas.winfo_height() - edge:
                self._top += edge // 4
            press.target = self.places().gap_at(event.x, event.y + self._top)
            self.draw_soon()

    def _released(self, event: tk.Event[Any]) -> None:
        press, self._press = self._press, None
        if press is None:
            return
        if press.is_dragging:
            self._handler.move(sorted(self.selection | {press.number}), press.target)
        elif press.was_selected and not int(event.state) & 0x5 and self.selection != {press.number}:
            self.select([press.number], is_seen=False)
        self.draw_soon()

    def _double_clicked(self, event: tk.Event[Any]) -> None:
        number = self._card_at(event.x, event.y)
        self._press = None
        if number is None:
            return
        if self._is_on_switch(number, event.x, event.y):  # two clicks
            self._handler.toggle([number])
        else:
            self._handler.open_card(number)

    def _menu(self, event: tk.Event[Any]) -> None:
        number = self._card_at(event.x, event.y)
        if number is not None:
            if number not in self.selection:
                self.select([number], is_seen=False)
            self._handler.open_menu(number, event)

    def _moved(self, event: tk.Event[Any]) -> None:
        number = self._card_at(event.x, event.y)
        if number != self._hovered:
            self._hovered = number
            self.draw_soon()
            self._handler.pointed_at(number, event)

    def _left(self, event: tk.Event[Any]) -> None:
        self._hovered = None
        self.draw_soon()
        self._handler.pointed_at(None, event)

    def _wheel(self, event: tk.Event[Any]) -> str:
        is_up = event.num == 4 or event.delta > 0
        self._top = max(0, self._top + self.theme.px(-_WHEEL_PX if is_up else _WHEEL_PX))
        self.draw_soon()
        return "break"

    def _scroll_by_bar(self, kind: str, amount: Any, _unit: str = "") -> None:
        self._top = int(float(amount) * self.places().height if kind == "moveto" else self._top + float(amount) * 60)
        self.draw_soon()

    # -- keys

    def _arrow(self, key: str, is_extending: bool, _event: object) -> str:
        if self.cards:
            number = self.places().beside(self.current, key, self.canvas.winfo_height())
            if is_extending:
                self._select_to(number)
                self.see(number)
                self._handler.selected()
            else:
                self.select([number])
        return "break"

    def _select_to(self, number: int) -> None:
        first, last = sorted((min(self._anchor, len(self.cards) - 1), number))
        self.selection = set(range(first, last + 1))
        self.current = number
        self.draw_soon()

    def _move_by_key(self, by: int, _event: object) -> str:
        if self.selection:
            chosen = sorted(self.selection)
            self._handler.move(chosen, max(0, chosen[0] - 1) if by < 0 else min(len(self.cards), chosen[-1] + 2))
        return "break"

    def _on_current(self, act: Callable[[int], object]) -> str:
        if self.cards:
            act(self.current)
        return "break"

    def _on_selection(self, act: Callable[[Sequence[int]], object]) -> str:
        if self.selection:
            act(sorted(self.selection))
        return "break"

    def _select_all(self, _event: object) -> str:
        self.selection = set(range(len(self.cards)))
        self.draw_soon()
        self._handler.selected()
        return "break"
