"""A grid of images on a plain canvas; only visible ones are loaded, in the background."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ui.loop.pump import Pump
from ui.widgets.canvas import CanvasBatch
from ui.widgets.image_canvas import ImageCanvas, shortened
from ui.widgets.photos import Load, fitted_into_square
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


class ImageGrid(ImageCanvas):
    """Call `show` with tiles; a click on one calls `on_open(index)`."""

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        pump: Pump,
        *,
        tile_px: int = 120,
        on: str = "card",
        empty_text: str = "",
        on_open: Callable[[int], object] | None = None,
        load: Load = fitted_into_square,
    ) -> None:
        super().__init__(master, theme, pump, on=on, most_photos=_MAX_KEPT, load=load)
        self.tiles: Sequence[Tile] = ()
        self._min_tile_px = theme.px(tile_px)
        self._tile_px = self._min_tile_px
        self._num_columns = 1
        self._empty_text = empty_text
        self._on_open = on_open
        self.canvas.bind("<Button-1>", self._on_click)

    def show(self, tiles: Sequence[Tile]) -> None:
        """Show other tiles; images that are already loaded are reused. The sequence must not change."""
        self.tiles = tuple(tiles) if isinstance(tiles, list) else tiles
        if len(tiles) <= _MAX_KEPT:  # of more, those that were used last are kept
            self._photos.keep_only({tile.path for tile in self.tiles})
        self.draw()

    def draw(self) -> None:
        """Draw the visible tiles."""
        canvas = self.canvas
        height = canvas.winfo_height()
        if height <= 1:
            return  # not on the screen yet
        if not self.tiles:
            canvas.delete("all")
            self._write_in_the_middle(self._empty_text)
            return
        self._num_columns, self._tile_px = self._columns_and_tile_px()
        self._keep_inside()
        in_sight = self._indices_in_sight(height)
        self._photos.load_only({(self.tiles[index].path, self._tile_px) for index in in_sight})
        batch = CanvasBatch(canvas)
        for index in in_sight:
            self._draw_tile(batch, index)
        batch.draw()
        for index in in_sight:
            if self.tiles[index].badge:
                self._draw_badge(*self._corner(index), self.tiles[index])

    def _draw_tile(self, batch: CanvasBatch, index: int) -> None:
        tile, (x, y), side = self.tiles[index], self._corner(index), self._tile_px
        key = (tile.path, side)
        photo = self._photos.get(key)
        if photo is not None:
            batch.add("image", x + side / 2, y + side / 2, image=photo)
        else:
            batch.add("rectangle", x, y, x + side, y + side, fill=self.theme.colour("field"), width=0)
            self._photos.load(key)
        if tile.ring:
            width = self.theme.px(_RING_PX)
            inset = width / 2
            batch.add(
                "rectangle", x + inset, y + inset, x + side - inset, y + side - inset,
                outline=self.theme.colour(tile.ring), width=width, tags="ring",
            )  # fmt: skip
        if tile.caption:
            batch.add(
                "text", x, y + side + self.theme.px(3), text=shortened(tile.caption, int(side * _CHARS_PER_PX)),
                width=side, anchor="nw", fill=self.theme.colour("muted"), font=self.theme.font("caption"),
            )  # fmt: skip

    def _draw_badge(self, x: float, y: float, tile: Tile) -> None:
        """Write a text on a plate in the lower left corner, in the colour of the ring."""
        padding = self.theme.px(_BADGE_PADDING_PX)
        text = self.canvas.create_text(
            x + 2 * padding, y + self._tile_px - 1.5 * padding, text=tile.badge, anchor="sw", tags="badge",
            fill=self.theme.colour("card" if tile.ring else "on_tip"), font=self.theme.font("caption"),
        )  # fmt: skip
        left, top, right, bottom = self.canvas.bbox(text)
        plate = self.canvas.create_rectangle(
            left - padding, top - 1, right + padding, bottom + 1, width=0, fill=self.theme.colour(tile.ring or "tip")
        )
        self.canvas.tag_raise(text, plate)

    def _columns_and_tile_px(self) -> tuple[int, int]:
        """Return the number of columns, and the side of a tile that fills the width.

        The side changes in coarse steps, so that resizing the window reloads little.
        """
        gap, width = self.theme.px(_GAP_PX), self.canvas.winfo_width()
        columns = max(1, (width + gap) // (self._min_tile_px + gap))
        side = (width - gap * (columns - 1)) // columns
        return columns, max(self._min_tile_px, side // _TILE_STEP_PX * _TILE_STEP_PX)

    def _row_px(self) -> int:
        has_captions = any(tile.text for tile in self.tiles[:_MAX_KEPT])  # without asking for any
        return self._tile_px + self.theme.px(_GAP_PX + (_CAPTION_PX if has_captions else 0))

    def content_height(self) -> int:
        """Return the height of all rows in pixels."""
        return -(-len(self.tiles) // self._num_columns) * self._row_px()

    def _corner(self, index: int) -> tuple[int, int]:
        row, column = divmod(index, self._num_columns)
        return column * (self._tile_px + self.theme.px(_GAP_PX)), row * self._row_px() - self._top

    def _indices_in_sight(self, height: int) -> range:
        columns, row_px = self._num_columns, self._row_px()
        first = self._top // row_px * columns
        last = ((self._top + height) // row_px + 1) * columns
        return range(first, min(len(self.tiles), last))

    def _on_click(self, event: tk.Event[Any]) -> None:
        for index in self._indices_in_sight(self.canvas.winfo_height()):
            x, y = self._corner(index)
            if x <= event.x < x + self._tile_px and y <= event.y < y + self._tile_px and self._on_open is not None:
                self._on_open(index)
                return
