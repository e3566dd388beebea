"""A grid of cards on a canvas: an image, a title with a switch, and lines of text."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from typing import Any

from ui.loop.pump import Pump
from ui.widgets.canvas import CanvasBatch
from ui.widgets.card_grid_input import GridInput
from ui.widgets.fitted_text import FittedTexts
from ui.widgets.grid import Grid
from ui.widgets.grid_card import GridCard, Handler
from ui.widgets.grid_layout import GridLayout, card_layout
from ui.widgets.photos import Key, Load
from ui.widgets.shapes import Shapes
from ui.widgets.theme import RADIUS, Theme

_MAX_KEPT = 200
_MIN_CARD_PX, _MAX_CARD_PX, _GAP_PX, _INSET_PX = 196, 380, 12, 8
_IMAGE_SHARE = 0.62  # of the width
_TEXT_PX = 92  # below the image
_SWITCH_PX = (30, 16)
_BAR_PX = 4


class CardGrid(Grid):
    """Call `show` with cards. Click, Ctrl, Shift and arrows select; Return opens; Space toggles; dragging reorders."""

    def __init__(self, master: tk.Misc, theme: Theme, pump: Pump, handler: Handler, load: Load) -> None:
        super().__init__(master, theme, pump, on="window", most_photos=_MAX_KEPT, load=load, takes_focus=True)
        self.cards: Sequence[GridCard] = ()
        self.selection: set[int] = set()
        self.current = 0
        self._handler = handler
        self.drop_before: int | None = None  # the card before which dragged ones would be dropped
        self.range_start = 0  # where a range of selected cards begins
        self._texts = FittedTexts(self.canvas, theme)
        self._shapes = Shapes(self.canvas, theme)
        self._input = GridInput(self, handler)

    def apply_theme(self) -> None:
        """Apply the colours of the current mode, which the gaps inside of an image have, too."""
        self.photos.close()
        self._shapes.forget()
        super().apply_theme()

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
            self.current = self.range_start = min(self.selection)
            if is_seen:
                self.see(self.current)
        self.draw_soon()
        self._handler.selected()

    def see(self, number: int) -> None:
        """Scroll as little as needed to bring a card into view."""
        layout = self.layout()
        top = layout.corner(number)[1]
        lowest = top + layout.row_px - self.canvas.winfo_height()
        self.top = min(top - min(layout.gap, top), max(self.top, lowest))
        self.draw_soon()

    @property
    def in_sight(self) -> list[int]:
        """The numbers of the visible cards."""
        return self.visible(self.layout())

    def layout(self) -> GridLayout:
        """Return where the cards are."""
        px = self.theme.px
        return card_layout(
            len(self.cards), self.canvas.winfo_width(), self.canvas.winfo_height(), min_px=px(_MIN_CARD_PX),
            most_px=px(_MAX_CARD_PX), gap_px=px(_GAP_PX), text_px=px(_TEXT_PX), image_share=_IMAGE_SHARE,
        )  # fmt: skip

    def edges_of(self, number: int) -> tuple[int, int]:
        """Return the top and the bottom of a card on the screen."""
        top = self.canvas.winfo_rooty() + self.place_of(number)[1]
        return top, top + self.layout().cell_height

    def switch_of(self, number: int) -> tuple[int, int]:
        """Return the middle of a card's switch on the canvas."""
        return self._switch_place(self.layout(), *self.place_of(number))

    def _switch_place(self, layout: GridLayout, x: int, y: int) -> tuple[int, int]:
        width, height = map(self.theme.px, _SWITCH_PX)
        inset = self.theme.px(_INSET_PX)
        return (
            x + layout.cell_width - inset - self.theme.px(2) - width // 2,
            y + inset + self._image_height(layout) + self.theme.px(8) + height // 2,
        )

    def gap_at(self, x: int, y: int) -> int:
        """Return the card before which something dropped at a place on the canvas belongs."""
        return self.layout().gap_at(x, y + self.top)

    def is_on_switch(self, number: int, x: int, y: int) -> bool:
        """Return whether a place on the canvas is on a card's switch, or close to it."""
        middle_x, middle_y = self.switch_of(number)
        width, height = map(self.theme.px, _SWITCH_PX)
        return abs(x - middle_x) <= width // 2 + 3 and abs(y - middle_y) <= height // 2 + 5

    def select_to(self, number: int) -> None:
        """Select the range of cards up to one."""
        first, last = sorted((min(self.range_start, len(self.cards) - 1), number))
        self.selection = set(range(first, last + 1))
        self.current = number
        self.draw_soon()

    def photo_key(self, number: int, layout: GridLayout) -> Key | None:
        """Return the key of a card's image; both of its sides are one number in it."""
        image = self.cards[number].image
        return (image, self._image_width(layout) << 16 | self._image_height(layout)) if image else None

    def draw_above(self, batch: CanvasBatch, layout: GridLayout) -> None:
        """Draw where the dragged cards would be dropped."""
        if self.drop_before is not None:
            x, y = layout.edge_before(self.drop_before)
            batch.add(
                "line", x, y - self.top, x, y - self.top + layout.cell_height,
                fill=self.theme.colour("accent"), width=self.theme.px(4), capstyle="round", tags="target",
            )  # fmt: skip

    def pointed_at(self, event: tk.Event[Any]) -> None:
        """Mark the card under the pointer."""
        self.draw_soon()
        self._handler.pointed_at(self.hovered, event)

    def destroy(self) -> None:
        """Also forget the drawn shapes."""
        self._shapes.forget()
        super().destroy()

    # -- drawing

    def draw_item(self, batch: CanvasBatch, layout: GridLayout, number: int, x: int, y: int) -> None:
        """Draw a card."""
        card, px, inset = self.cards[number], self.theme.px, self.theme.px(_INSET_PX)
        is_current = number == self.current and self.has_focus
        fill = "selection" if number in self.selection else "field_hover" if number == self.hovered else "card"
        line, line_px = ("accent", px(2)) if is_current else ("", 0)
        plate = self._shapes.plate(
            layout.cell_width, layout.cell_height, px(RADIUS), fill=fill, on=self.token, line=line, line_px=line_px
        )
        batch.add("image", x, y, image=plate, anchor="nw", tags="card")
        self._draw_image(batch, layout, number, x + inset, y + inset)
        width, height = map(px, _SWITCH_PX)
        switch = self._shapes.switch(width, height, is_on=card.is_on, on=fill)
        batch.add("image", *self._switch_place(layout, x, y), image=switch)
        left, top = x + inset + px(2), y + inset + self._image_height(layout) + px(6)
        room = layout.cell_width - 2 * inset - px(4)
        self._write(batch, card.title, left, top, room - width - px(8), "strong", "text" if card.is_on else "faint")
        top += px(23)
        for index, text in enumerate(card.lines):
            self._write(batch, text.text, left, top, room, "small", text.colour if card.is_on else "faint")
            top += px(18)
            if index == 0 and card.share is not None:
                self._draw_share(batch, card, left, top, room)
                top += px(10)

    def _image_width(self, layout: GridLayout) -> int:
        return layout.cell_width - 2 * self.theme.px(_INSET_PX)

    def _image_height(self, layout: GridLayout) -> int:
        return layout.cell_height - self.theme.px(_TEXT_PX)

    def _draw_image(self, batch: CanvasBatch, layout: GridLayout, number: int, x: int, y: int) -> None:
        width, height, key = self._image_width(layout), self._image_height(layout), self.photo_key(number, layout)
        photo = self.photo(key) if key is not None else None
        if photo is not None:
            batch.add("image", x, y, image=photo, anchor="nw", tags="photo")
            return
        batch.add("rectangle", x, y, x + width, y + height, fill=self.theme.colour("field"), width=0)
        if key is None or key in self.photos:  # without an image, or unreadable
            batch.add(
                "text", x + width // 2, y + height // 2, text=self.cards[number].note,
                width=width - self.theme.px(16), justify="center",
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

    def _write(self, batch: CanvasBatch, text: str, x: int, y: int, room: int, role: str, token: str) -> None:
        batch.add(
            "text", x, y, text=self._texts.fit(text, role, room), anchor="nw",
            fill=self.theme.colour(token), font=self.theme.font(role), tags="text",
        )  # fmt: skip
