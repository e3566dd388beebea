"""A grid of cards on a canvas: an image, a title with a switch, and lines of text. Only visible cards are drawn."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence

from ui.loop.pump import Pump
from ui.widgets.canvas import CanvasBatch
from ui.widgets.card_grid_input import GridInput
from ui.widgets.drawn import Shapes
from ui.widgets.fitted_text import FittedTexts
from ui.widgets.focus import focused_widget
from ui.widgets.grid_card import GridCard, Handler
from ui.widgets.grid_places import GridPlaces
from ui.widgets.image_canvas import ImageCanvas
from ui.widgets.photos import Load
from ui.widgets.theme import RADIUS, Theme

_MAX_KEPT = 200
_MIN_CARD_PX, _MOST_CARD_PX, _GAP_PX, _INSET_PX = 196, 380, 12, 8
_IMAGE_SHARE = 0.62  # of the width
_TEXT_PX = 92  # below the image
_SWITCH_PX = (30, 16)
_BAR_PX = 4


class CardGrid(ImageCanvas):
    """Call `show` with cards. Click, Ctrl, Shift and arrows select; Return opens; Space toggles; dragging reorders."""

    def __init__(
        self, master: tk.Misc, theme: Theme, pump: Pump, handler: Handler, load: Load, *, on: str = "window"
    ) -> None:
        super().__init__(master, theme, pump, on=on, most_photos=_MAX_KEPT, load=load, takes_focus=True)
        self.cards: Sequence[GridCard] = ()
        self.selection: set[int] = set()
        self.current = 0
        self._handler = handler
        self.hovered: int | None = None
        self.drop_before: int | None = None  # the card before which dragged ones would be dropped
        self.range_start = 0  # where a range of selected cards begins
        self._texts = FittedTexts(self.canvas, theme)
        self._shapes = Shapes(self.canvas, theme)
        self._input = GridInput(self, handler)

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
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
            len(self.cards), self.canvas.winfo_width(), self.canvas.winfo_height(), min_px=px(_MIN_CARD_PX),
            most_px=px(_MOST_CARD_PX), gap_px=px(_GAP_PX), text_px=px(_TEXT_PX), image_share=_IMAGE_SHARE,
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

    def card_at(self, x: int, y: int) -> int | None:
        """Return the card at a place on the canvas."""
        return self.places().at(x, y + self._top)

    def gap_at(self, x: int, y: int) -> int:
        """Return the card before which something dropped at a place on the canvas belongs."""
        return self.places().gap_at(x, y + self._top)

    def is_on_switch(self, number: int, x: int, y: int) -> bool:
        """Return whether a place on the canvas is on a card's switch, or close beside it."""
        middle_x, middle_y = self.switch_of(number)
        width, height = map(self.theme.px, _SWITCH_PX)
        return abs(x - middle_x) <= width // 2 + 3 and abs(y - middle_y) <= height // 2 + 5

    def select_to(self, number: int) -> None:
        """Select the range of cards up to one."""
        first, last = sorted((min(self.range_start, len(self.cards) - 1), number))
        self.selection = set(range(first, last + 1))
        self.current = number
        self.draw_soon()

    def content_height(self) -> int:
        """Return the height of all cards in pixels."""
        return self.places().height

    def draw(self) -> None:
        """Draw the visible cards."""
        canvas = self.canvas
        height, places = canvas.winfo_height(), self.places()
        if height <= 1:
            return  # not on the screen yet
        self._keep_inside()
        in_sight = places.in_sight(self._top, height)
        size = self._image_key(places)
        self._photos.load_only({(self.cards[n].image, size) for n in in_sight})
        has_focus = focused_widget(canvas) is canvas
        batch = CanvasBatch(canvas)
        for number in in_sight:
            self._draw_card(batch, number, places, is_current=has_focus and number == self.current)
        if self.drop_before is not None:
            self._draw_target(batch, places, self.drop_before)
        batch.draw()

    def destroy(self) -> None:
        """Also forget the drawn shapes."""
        self._shapes.forget()
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
        fill = "selection" if number in self.selection else "field_hover" if number == self.hovered else "card"
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

    def _draw_target(self, batch: CanvasBatch, places: GridPlaces, before: int) -> None:
        """Draw where the dragged cards would be dropped."""
        x, y = places.edge_before(before)
        batch.add(
            "line", x, y - self._top, x, y - self._top + places.card_height,
            fill=self.theme.colour("accent"), width=self.theme.px(4), capstyle="round", tags="target",
        )  # fmt: skip

    def _write(self, batch: CanvasBatch, text: str, x: int, y: int, room: int, role: str, token: str) -> None:
        batch.add(
            "text", x, y, text=self._texts.fitted(text, role, room), anchor="nw",
            fill=self.theme.colour(token), font=self.theme.font(role), tags="text",
        )  # fmt: skip
