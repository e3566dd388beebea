"""The samples of a run, prompts by steps, on a plain canvas; only visible images are loaded, in the background."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from ui.loop.pump import Pump
from ui.widgets.focus import focused_widget
from ui.widgets.image_canvas import ImageCanvas, shortened
from ui.widgets.sample_table import GridGeometry, Place, SampleTable
from ui.widgets.theme import Theme

_GAP_PX, _TITLE_PX, _LABEL_PX = 8, 20, 18
_MIN_TILE_PX, _MAX_TILE_PX = 104, 240
_MAX_KEPT = 300
_DRAG_PX = 5
_STAR_PX = 26
_CHARS_PER_PX = 1 / 6.2
_MOVES = {"<Left>": (0, -1), "<Right>": (0, 1), "<Up>": (-1, 0), "<Down>": (1, 0)}


class SampleGrid(ImageCanvas):
    """Call `show` with the samples; a click on one calls `on_open(place)`, one on its star `on_star(place)`.

    Drag, or turn the wheel with Shift, to see other steps. The arrow keys choose a sample, Return opens it and S stars
    it. New steps come into view as long as the last one is in view.
    """

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        pump: Pump,
        *,
        empty_text: str,
        on_open: Callable[[Place], object],
        on_star: Callable[[Place], object],
    ) -> None:
        super().__init__(master, theme, pump, on="card", most_photos=_MAX_KEPT, takes_focus=True)
        self.table = SampleTable()
        self.starred: Collection[Path] = frozenset()
        self.chosen: Place | None = None
        self._empty_text, self._on_open, self._on_star = empty_text, on_open, on_star
        self._left = 0
        self._drawn: GridGeometry | None = None
        self._drawn_width = 0
        self._hovered: Place | None = None
        self._pressed: tuple[int, int, int, int] | None = None
        self._bind_events()

    def _bind_events(self) -> None:
        canvas = self.canvas
        canvas.bind("<Button-1>", self._press)
        canvas.bind("<B1-Motion>", self._drag)
        canvas.bind("<ButtonRelease-1>", self._release)
        canvas.bind("<Motion>", lambda event: self._hover(self._place_at(event.x, event.y)))
        canvas.bind("<Leave>", lambda _e: self._hover(None))
        for key, (rows, columns) in _MOVES.items():
            canvas.bind(key, lambda _e, rows=rows, columns=columns: self._choose(rows, columns))  # type: ignore[misc]
        canvas.bind("<FocusIn>", lambda _e: self._on_focus(), add="+")
        canvas.bind("<Return>", lambda _e: self._with_chosen(self._on_open))
        canvas.bind("<s>", lambda _e: self._with_chosen(self._on_star))

    def show(self, table: SampleTable, starred: Collection[Path]) -> None:
        """Show these samples; images that are already loaded are reused."""
        follows = self._is_at_end(self.geometry, self.canvas.winfo_width())
        self.table, self.starred = table, starred
        self._photos.keep_only({Path(s.path) for s in table.samples})
        if follows:
            self._left = self.geometry.size[0]  # drawing keeps it inside
        self.draw()

    @property
    def geometry(self) -> GridGeometry:
        """Where the cells are; as many columns as fit fill the width."""
        px, width, num_columns = self.theme.px, self.canvas.winfo_width(), len(self.table.steps)
        gap, least = px(_GAP_PX), px(_MIN_TILE_PX)
        fitting = max(1, min((width + gap) // (least + gap), num_columns or 1))
        side = (width - gap * (fitting - 1)) // fitting
        side = max(least, min(side, px(_MAX_TILE_PX)))
        return GridGeometry(len(self.table.rows), num_columns, side, gap, px(_TITLE_PX), px(_LABEL_PX))

    def content_height(self) -> int:
        """Return the height of all rows in pixels."""
        return self.geometry.size[1]

    def draw(self) -> None:
        """Draw the visible cells."""
        canvas, geometry = self.canvas, self.geometry
        canvas.delete("all")
        width, height = canvas.winfo_width(), canvas.winfo_height()
        if width <= 1:
            return  # not on the screen yet
        if not self.table.samples:
            self._write_in_the_middle(self._empty_text)
            return
        self._keep_steps(geometry, width)
        self._left = max(0, min(self._left, geometry.size[0] - width))
        self._keep_inside()
        rows, columns = geometry.visible(self._left, self._top, width, height)
        for row in rows:
            self._draw_title(geometry, row)
            for column in columns:
                self._draw_cell(geometry, (row, column))
        if geometry.size[0] > width:
            self._draw_position(width, height, geometry.size[0])

    def _is_at_end(self, geometry: GridGeometry, width: int) -> bool:
        return self._left >= geometry.size[0] - width - self.theme.px(_GAP_PX)

    def _keep_steps(self, geometry: GridGeometry, width: int) -> None:
        """Keep the last step in view when the size of the window changes, or else the first one that is shown."""
        before = self._drawn
        if before is not None and (before.tile_px, self._drawn_width) != (geometry.tile_px, width):
            if self._is_at_end(before, self._drawn_width):
                self._left = geometry.size[0]
            else:
                self._left = round(self._left / before.column_px) * geometry.column_px
        self._drawn, self._drawn_width = geometry, width

    def _draw_title(self, geometry: GridGeometry, row: int) -> None:
        y = geometry.corner(row, 0)[1] - self._top - geometry.title_px // 2
        most = int(self.canvas.winfo_width() * _CHARS_PER_PX / self.theme.scale)
        self.canvas.create_text(
            0, y, text=shortened(self.table.title(row), most), anchor="w", tags="title",
            fill=self.theme.colour("label"), font=self.theme.font("small"),
        )  # fmt: skip

    def _draw_cell(self, geometry: GridGeometry, place: Place) -> None:
        sample = self.table.at(*place)
        x, y = self._corner(geometry, place)
        side, colour = geometry.tile_px, self.theme.colour
        if sample is None:
            return
        path = Path(sample.path)
        photo = self._photos.get((path, side))
        if photo is not None:
            self.canvas.create_image(x + side / 2, y + side / 2, image=photo)
        else:
            self.canvas.create_rectangle(x, y, x + side, y + side, fill=colour("field"), width=0)
            self._photos.load((path, side))
        if place == self.chosen and focused_widget(self.canvas) is self.canvas:
            self.canvas.create_rectangle(x, y, x + side, y + side, outline=colour("accent"), width=self.theme.px(2))
        self.canvas.create_text(
            x, y + side + self.theme.px(2), text=f"step {sample.step:,}", anchor="nw",
            fill=colour("muted"), font=self.theme.font("caption"), tags="step",
        )  # fmt: skip
        if path in self.starred or place == self._hovered:
            self._draw_star(x + side, y, is_starred=path in self.starred)

    def _draw_star(self, right: float, top: float, *, is_starred: bool) -> None:
        side = self.theme.px(_STAR_PX)
        self.canvas.create_rectangle(right - side, top, right, top + side, fill=self.theme.colour("tip"), width=0)
        self.canvas.create_text(
            right - side / 2, top + side / 2, text="★" if is_starred else "☆", tags="star",
            fill=self.theme.colour("accent" if is_starred else "on_tip"), font=self.theme.font("heading"),
        )  # fmt: skip

    def _draw_position(self, width: int, height: int, whole: int) -> None:
        """Draw which part of the steps is in view, at the bottom."""
        y, thick = height - self.theme.px(2), self.theme.px(3)
        colour = self.theme.colour
        self.canvas.create_line(0, y, width, y, fill=colour("chart_grid"), width=thick)
        left, right = self._left / whole * width, (self._left + width) / whole * width
        self.canvas.create_line(left, y, right, y, fill=colour("track"), width=thick, tags="position")

    # -- moving

    def _corner(self, geometry: GridGeometry, place: Place) -> tuple[int, int]:
        x, y = geometry.corner(*place)
        return x - self._left, y - self._top

    def _place_at(self, x: int, y: int) -> Place | None:
        place = self.geometry.at(x + self._left, y + self._top)
        return place if place is not None and self.table.at(*place) is not None else None

    def _wheel(self, event: tk.Event[Any]) -> str:
        is_sideways = isinstance(event.state, int) and bool(event.state & 1)
        if not is_sideways and self.content_height() > self.canvas.winfo_height():
            return super()._wheel(event)
        by = self.theme.px(self.wheel_px)
        self._left += -by if event.num == 4 or event.delta > 0 else by
        self.draw_soon()
        return "break"

    def _press(self, event: tk.Event[Any]) -> None:
        self.canvas.focus_set()
        self._pressed = (event.x, event.y, self._left, self._top)

    def _drag(self, event: tk.Event[Any]) -> None:
        if self._pressed is not None and self._is_drag(event):
            x, y, left, top = self._pressed
            self._left, self._top = left + x - event.x, top + y - event.y
            self.draw()

    def _release(self, event: tk.Event[Any]) -> None:
        if self._pressed is None or self._is_drag(event):
            self._pressed = None
            return
        self._pressed = None
        place = self._place_at(event.x, event.y)
        if place is None:
            return
        self.chosen = place
        x, y = self._corner(self.geometry, place)
        side = self.theme.px(_STAR_PX)
        is_star = event.x >= x + self.geometry.tile_px - side and event.y < y + side
        (self._on_star if is_star else self._on_open)(place)

    def _is_drag(self, event: tk.Event[Any]) -> bool:
        assert self._pressed is not None
        return max(abs(event.x - self._pressed[0]), abs(event.y - self._pressed[1])) > self.theme.px(_DRAG_PX)

    def _hover(self, place: Place | None) -> None:
        if place != self._hovered:
            self._hovered = place
            self.draw_soon()

    def _choose(self, rows: int, columns: int) -> str:
        if self.table.samples:
            newest = self.table.place_of(self.table.samples[-1])
            self.chosen = self.table.moved(self.chosen, rows, columns) if self.chosen else newest
            self._see(self.chosen)
        return "break"

    def _on_focus(self) -> None:
        """Show where the keys begin, unless a click chooses."""
        if self.chosen is None and self._pressed is None:
            self._choose(0, 0)

    def _see(self, place: Place) -> None:
        geometry = self.geometry
        (x, y), width, height = geometry.corner(*place), self.canvas.winfo_width(), self.canvas.winfo_height()
        self._left = max(x + geometry.tile_px - width, min(self._left, x))
        self._top = max(y + geometry.tile_px + geometry.label_px - height, min(self._top, y - geometry.title_px))
        self.draw()

    def _with_chosen(self, act: Callable[[Place], object]) -> None:
        if self.chosen is not None and self.table.at(*self.chosen) is not None:
            act(self.chosen)
