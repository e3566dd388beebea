"""A grid of images with captions, badges and frames."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ui.loop.pump import Pump
from ui.widgets.canvas import CanvasBatch
from ui.widgets.fitted_text import shorten
from ui.widgets.grid import Grid
from ui.widgets.grid_layout import GridLayout
from ui.widgets.photos import Key, Load, fitted_into_square
from ui.widgets.theme import Theme

_GAP_PX = 10
_CAPTION_PX = 34
_MAX_KEPT = 300
_CHARS_PER_PX = 2 / 6.4  # two lines of text, about this many pixels per letter
_TILE_STEP_PX = 16
_RING_PX = 3
_BADGE_PADDING_PX = 4


@dataclass(frozen=True)
class Tile:
    """An image of the grid and its caption, or a function that returns it and is called when it is first shown.

    `badge` is a short text on the image. A token of the theme as `ring` draws a frame around it.
    """

    path: Path
    text: str | Callable[[], str] = ""
    badge: str = ""
    ring: str = ""

    @cached_property
    def caption(self) -> str:
        """The caption; empty if there is none."""
        return self.text() if callable(self.text) else self.text


class ImageGrid(Grid):
    """Call `show` with tiles; a click on one calls `on_open(index)`, the right button `on_menu(index, event)`."""

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        pump: Pump,
        *,
        tile_px: int = 120,
        empty_text: str = "",
        on_open: Callable[[int], object] | None = None,
        on_menu: Callable[[int, tk.Event[Any]], object] | None = None,
        load: Load = fitted_into_square,
    ) -> None:
        super().__init__(
            master, theme, pump, on="card", most_photos=_MAX_KEPT, load=load, empty_text=empty_text, on_click=on_open
        )
        self.tiles: Sequence[Tile] = ()
        self._min_tile_px = theme.px(tile_px)
        self._on_menu = on_menu
        if on_menu is not None:
            is_mac = self.tk.call("tk", "windowingsystem") == "aqua"
            self.canvas.bind("<Button-2>" if is_mac else "<Button-3>", self._open_menu)

    def show(self, tiles: Sequence[Tile]) -> None:
        """Show other tiles; images that are already loaded are reused. The sequence must not change."""
        self.tiles = tuple(tiles) if isinstance(tiles, list) else tiles
        if len(tiles) <= _MAX_KEPT:  # of more, those that were used last are kept
            self.photos.keep_only({tile.path for tile in self.tiles})
        self.draw()

    def layout(self) -> GridLayout:
        """Return tiles that fill the width; their side changes in coarse steps, so that resizing reloads little."""
        gap, width = self.theme.px(_GAP_PX), self.canvas.winfo_width()
        columns = max(1, (width + gap) // (self._min_tile_px + gap))
        side = max(self._min_tile_px, (width - gap * (columns - 1)) // columns // _TILE_STEP_PX * _TILE_STEP_PX)
        has_captions = any(tile.text for tile in self.tiles[:_MAX_KEPT])  # without asking for any
        caption = self.theme.px(_CAPTION_PX) if has_captions else 0
        return GridLayout(len(self.tiles), columns, side, side + caption, gap, live_px=side)

    def photo_key(self, number: int, layout: GridLayout) -> Key:
        """Return the key of a tile's image."""
        return self.tiles[number].path, layout.cell_width

    def draw_item(self, batch: CanvasBatch, layout: GridLayout, number: int, x: int, y: int) -> None:
        """Draw a tile."""
        tile, side = self.tiles[number], layout.cell_width
        self.draw_photo(batch, self.photo_key(number, layout), x, y, side)
        if tile.ring:
            width = self.theme.px(_RING_PX)
            inset, last = width // 2, side - 1
            batch.add(
                "rectangle", x + inset, y + inset, x + last - inset, y + last - inset,
                outline=self.theme.colour(tile.ring), width=width, tags="ring",
            )  # fmt: skip
        if tile.badge:
            self._draw_badge(batch, tile, x, y + side)
        if tile.caption:
            batch.add(
                "text", x, y + side + self.theme.px(3), text=shorten(tile.caption, int(side * _CHARS_PER_PX)),
                width=side, anchor="nw", fill=self.theme.colour("muted"), font=self.theme.font("caption"),
            )  # fmt: skip

    def _open_menu(self, event: tk.Event[Any]) -> None:
        number = self.number_at(event.x, event.y)
        if number is not None and self._on_menu is not None:
            self._on_menu(number, event)

    def _draw_badge(self, batch: CanvasBatch, tile: Tile, x: int, bottom: int) -> None:
        """Write a text on a plate in the lower left corner, in the colour of the ring."""
        padding, font = self.theme.px(_BADGE_PADDING_PX), self.theme.font("caption")
        width = int(self.tk.call("font", "measure", font, tile.badge))
        height = int(self.tk.call("font", "metrics", font, "-linespace"))
        left, low = x + 2 * padding, bottom - 1.5 * padding
        batch.add(
            "rectangle", left - padding, low - height - 1, left + width + padding, low + 1, width=0,
            fill=self.theme.colour(tile.ring or "tip"),
        )  # fmt: skip
        batch.add(
            "text", left, low, text=tile.badge, anchor="sw", tags="badge", font=font,
            fill=self.theme.colour("card" if tile.ring else "on_tip"),
        )  # fmt: skip
