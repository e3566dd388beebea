"""A grid of items on a canvas with a scroll bar: only visible items are drawn, and images load in the background."""

from __future__ import annotations

import tkinter as tk
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from PIL import ImageTk

from ui.loop.pump import Pump
from ui.widgets.auto_bar import AutoBar
from ui.widgets.canvas import CanvasBatch
from ui.widgets.grid_layout import GridLayout
from ui.widgets.panel import Panel, focused_widget
from ui.widgets.photos import Key, Load, Photos, fitted_into_square
from ui.widgets.theme import Theme


class Grid(Panel, ABC):
    """A subclass returns the `layout` of its items and draws one of them with `draw_item`.

    It may also return the `photo_key` of an item's image, follow the pointer with `pointed_at`, and draw above the
    items with `draw_above`. A click on an item calls `on_click(number)`. Without a bar it does not scroll.
    """

    wheel_px = 60

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        pump: Pump,
        *,
        most_photos: int,
        on: str = "card",
        load: Load = fitted_into_square,
        takes_focus: bool = False,
        has_bar: bool = True,
        empty_text: str = "",
        on_click: Callable[[int], object] | None = None,
    ) -> None:
        super().__init__(master, theme, on)
        self.canvas = tk.Canvas(
            self, highlightthickness=0, borderwidth=0, takefocus=takes_focus, background=theme.colour(on),
            width=theme.px(180), height=theme.px(100),
        )  # fmt: skip
        self.empty_text = empty_text
        self.left = self.top = 0  # how far it is scrolled
        self.hovered: int | None = None
        self._pump, self._takes_focus, self._on_click = pump, takes_focus, on_click
        self.photos = Photos(self.canvas, pump, self.draw_soon, most=most_photos, load=load)
        self._bar = AutoBar(self, theme, self._scroll_by_bar, on=on)
        self.columnconfigure(0, weight=1)
        self.rowconfigure(1, weight=1)  # a heading may be above
        self.canvas.grid(row=1, column=0, sticky="nsew")
        if has_bar:
            self._bar.grid(row=1, column=1, sticky="ns")
            for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
                self.canvas.bind(sequence, self._wheel)
        # Not at once: Tk calls this while it places children, when none may be removed (the bar is).
        redrawn = ("<Configure>", "<FocusIn>", "<FocusOut>") if takes_focus else ("<Configure>",)
        for sequence in redrawn:
            self.canvas.bind(sequence, lambda _e: self.draw_soon(), add="+")
        self.canvas.bind("<Motion>", lambda event: self._hover(self.number_at(event.x, event.y), event))
        self.canvas.bind("<Leave>", lambda event: self._hover(None, event))
        if on_click is not None:
            self.canvas.bind("<Button-1>", self._clicked)

    # -- what a subclass states

    @abstractmethod
    def layout(self) -> GridLayout:
        """Return where the items are."""

    @abstractmethod
    def draw_item(self, batch: CanvasBatch, layout: GridLayout, number: int, x: int, y: int) -> None:
        """Draw an item with its top left at a place on the canvas."""

    def photo_key(self, number: int, layout: GridLayout) -> Key | None:
        """Return the key of an item's image; None for an item without one."""
        return None

    def keys_ahead(self, layout: GridLayout) -> Sequence[Key]:
        """Return images that are not visible, but loaded ahead."""
        return ()

    def draw_above(self, batch: CanvasBatch, layout: GridLayout) -> None:
        """Draw what lies above the items."""

    def pointed_at(self, event: tk.Event[Any]) -> None:
        """Follow the pointer to another item, `hovered`."""

    # -- drawing

    def draw(self) -> None:
        """Draw what is visible."""
        if self.canvas.winfo_height() <= 1 or self.canvas.winfo_width() <= 1:
            return  # not on the screen yet
        layout, batch = self.layout(), CanvasBatch(self.canvas)
        self._keep_inside(layout)
        if not layout.count:
            self._write_in_the_middle(batch)
        visible = self.visible(layout)
        keys = [key for number in visible if (key := self.photo_key(number, layout)) is not None]
        ahead = self.keys_ahead(layout)
        self.photos.load_only([*keys, *ahead])
        for number in visible:
            x, y = layout.corner(number)
            self.draw_item(batch, layout, number, x - self.left, y - self.top)
        self.draw_above(batch, layout)
        batch.draw()
        for key in ahead:
            self.photos.load(key)

    def draw_soon(self) -> None:
        """Draw on the next turn of the pump."""
        self._pump.redraw_soon(self, self.draw)

    def visible(self, layout: GridLayout) -> list[int]:
        """Return the visible items."""
        width, height = self.canvas.winfo_width(), self.canvas.winfo_height()
        return list(layout.visible(self.top, height, self.left, width))

    def photo(self, key: Key) -> ImageTk.PhotoImage | None:
        """Return an image; None while it is loaded, which this starts, and for an unreadable one."""
        photo = self.photos.get(key)
        if photo is None:
            self.photos.load(key)
        return photo

    def draw_photo(self, batch: CanvasBatch, key: Key, x: int, y: int, side: int) -> None:
        """Draw an image in the middle of a square, or a plate until it is loaded."""
        photo = self.photo(key)
        if photo is not None:
            batch.add("image", x + side / 2, y + side / 2, image=photo)
        else:
            batch.add("rectangle", x, y, x + side, y + side, fill=self.theme.colour("field"), width=0)

    @property
    def has_focus(self) -> bool:
        """Whether the keyboard is in the grid."""
        return focused_widget(self.canvas) is self.canvas

    # -- places

    def number_at(self, x: int, y: int) -> int | None:
        """Return the item at a place on the canvas."""
        return self.layout().at(x + self.left, y + self.top)

    def place_of(self, number: int) -> tuple[int, int]:
        """Return the top left of an item on the canvas."""
        x, y = self.layout().corner(number)
        return x - self.left, y - self.top

    def see(self, number: int) -> None:
        """Scroll as little as needed to bring an item into view."""
        self.top = self.layout().top_to_see(number, self.top, self.canvas.winfo_height())
        self.draw_soon()

    def scroll(self, by_px: int) -> None:
        """Scroll down, or up for a negative distance."""
        self.top = max(0, self.top + by_px)
        self.draw_soon()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        super().apply_theme()
        self.canvas.configure(background=self.theme.colour(self.token))
        self.draw_soon()

    def destroy(self) -> None:
        """Also cancel the images that are still being loaded."""
        self.photos.close()
        self._pump.forget(self)
        super().destroy()

    def _keep_inside(self, layout: GridLayout) -> None:
        """Keep the place inside the grid, and show it on the bar."""
        width, height, whole = self.canvas.winfo_width(), self.canvas.winfo_height(), layout.height
        self.left = max(0, min(self.left, layout.width - width))
        self.top = max(0, min(self.top, whole - height))
        self._bar.set(self.top / max(1, whole), min(1.0, (self.top + height) / max(1, whole)))

    def _write_in_the_middle(self, batch: CanvasBatch) -> None:
        width, height = self.canvas.winfo_width(), self.canvas.winfo_height()
        batch.add(
            "text", width / 2, height / 2, text=self.empty_text, width=max(80, width - 40), justify="center",
            fill=self.theme.colour("faint"), font=self.theme.font("small"),
        )  # fmt: skip

    def _scroll_by_bar(self, kind: str, amount: Any, _unit: str = "") -> None:
        if kind == "moveto":
            self.top = int(float(amount) * self.layout().height)
            self.draw_soon()
        else:
            self.scroll(int(float(amount) * self.theme.px(self.wheel_px)))

    def _wheel(self, event: tk.Event[Any]) -> str:
        is_up = event.num == 4 or event.delta > 0
        self.scroll(self.theme.px(-self.wheel_px if is_up else self.wheel_px))
        return "break"

    def _clicked(self, event: tk.Event[Any]) -> None:
        if self._takes_focus:
            self.canvas.focus_set()
        number = self.number_at(event.x, event.y)
        if number is not None and self._on_click is not None:
            self._on_click(number)

    def _hover(self, number: int | None, event: tk.Event[Any]) -> None:
        if number != self.hovered:
            self.hovered = number
            self.pointed_at(event)
