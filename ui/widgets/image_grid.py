"""A grid of images on a plain canvas; only visible ones are loaded, in the background."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ui.run.pump import Pump
from ui.theme import Theme
from ui.widgets.auto_bar import AutoBar
from ui.widgets.canvas_batch import CanvasBatch
from ui.widgets.panel import Panel
from ui.widgets.photos import Load, Photos, fitted_into_square

_GAP_PX = 10
_CAPTION_PX = 34
_MAX_KEPT = 300
_CHARS_PER_PX = 2 / 6.4  # two lines of text, about this many pixels per letter
_WHEEL_PX = 60
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


class ImageGrid(Panel):
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
        super().__init__(master, theme, on)
        self.tiles: Sequence[Tile] = ()
        self.canvas = tk.Canvas(self, highlightthickness=0, borderwidth=0, width=theme.px(200), height=theme.px(120))
        self._pump = pump
        self._min_tile_px = theme.px(tile_px)
        self._tile_px = self._min_tile_px
        self._num_columns = 1
        self._empty_text = empty_text
        self._on_open = on_open
        self._top = 0
        redraw = partial(pump.redraw_soon, self, self.draw)
        self._photos = Photos(self.canvas, pump, redraw, most=_MAX_KEPT, load=load)
        self._bar = AutoBar(self, theme, self._scroll_by_bar, on=on)
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        self.canvas.grid(row=0, column=0, sticky="nsew")
        self._bar.grid(row=0, column=1, sticky="ns")
        # Not at once: Tk calls this while it places children, when none may be removed (the bar is).
        self.canvas.bind("<Configure>", lambda _e: pump.redraw_soon(self, self.draw))
        self.canvas.bind("<Button-1>", self._clicked)
        for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
            self.canvas.bind(sequence, self._wheel)
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        super().apply_theme()
        if hasattr(self, "canvas"):
            self.canvas.configure(background=self.theme.colour(self.token))
            self.draw()

    def show(self, tiles: Sequence[Tile]) -> None:
        """Show other tiles; images that are already loaded are reused. The sequence must not change."""
        self.tiles = tuple(tiles) if isinstance(tiles, list) else tiles
        if len(tiles) <= _MAX_KEPT:  # of more, those that were used last are kept
            self._photos.keep_only({tile.path for tile in self.tiles})
        self.draw()

    def destroy(self) -> None:
        """Also cancel the images that are still being loaded."""
        self._photos.close()
        self._pump.forget(self)
        super().destroy()

    def draw(self) -> None:
        """Draw the visible tiles."""
        canvas = self.canvas
        height = canvas.winfo_height()
        if height <= 1:
            return  # not on the screen yet
        if not self.tiles:
            canvas.delete("all")
            self._draw_empty()
            return
        self._num_columns, self._tile_px = self._columns_and_tile_px()
        self._top = max(0, min(self._top, self._height() - height))
        self._show_bar()
        in_sight = self._indices_in_sight(height)
        self._photos.load_only({(self.tiles[index].path, self._tile_px) for index in in_sight})
        batch = CanvasBatch(canvas)
        for index in in_sight:
            self._draw_tile(batch, index)
        batch.draw()
        for index in in_sight:
            if self.tiles[index].badge:
                self._draw_badge(*self._corner(index), self.tiles[index])

    def _draw_empty(self) -> None:
        self._bar.set(0, 1)
        self.canvas.create_text(
            self.canvas.winfo_width() / 2,
            self.canvas.winfo_height() / 2,
            text=self._empty_text,
            width=max(80, self.canvas.winfo_width() - 40),
            justify="center",
            fill=self.theme.colour("faint"),
            font=self.theme.font("small"),
        )

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
                "text", x, y + side + self.theme.px(3), text=_shortened(tile.caption, int(side * _CHARS_PER_PX)),
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

    def _height(self) -> int:
        return -(-len(self.tiles) // self._num_columns) * self._row_px()

    def _corner(self, index: int) -> tuple[int, int]:
        row, column = divmod(index, self._num_columns)
        return column * (self._tile_px + self.theme.px(_GAP_PX)), row * self._row_px() - self._top

    def _indices_in_sight(self, height: int) -> range:
        columns, row_px = self._num_columns, self._row_px()
        first = self._top // row_px * columns
        last = ((self._top + height) // row_px + 1) * columns
        return range(first, min(len(self.tiles), last))

    def _show_bar(self) -> None:
        height, needed = self.canvas.winfo_height(), self._height()
        self._bar.set(self._top / needed, min(1.0, (self._top + height) / needed))

    def _scroll_by_bar(self, kind: str, amount: Any, _unit: str = "") -> None:
        target = float(amount) * self._height() if kind == "moveto" else self._top + float(amount) * _WHEEL_PX
        self._top = int(target)
        self._pump.redraw_soon(self, self.draw)

    def _wheel(self, event: tk.Event[Any]) -> str:
        is_up = event.num == 4 or event.delta > 0
        self._top += -_WHEEL_PX if is_up else _WHEEL_PX
        self._pump.redraw_soon(self, self.draw)
        return "break"

    def _clicked(self, event: tk.Event[Any]) -> None:
        for index in self._indices_in_sight(self.canvas.winfo_height()):
            x, y = self._corner(index)
            if x <= event.x < x + self._tile_px and y <= event.y < y + self._tile_px and self._on_open is not None:
                self._on_open(index)
                return


def _shortened(text: str, max_chars: int) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= max_chars else plain[: max_chars - 1] + "…"
