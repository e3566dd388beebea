"""The samples of a run as a table, prompts by steps, and the grid that draws it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainer.events import SampleReady
from ui.loop.pump import Pump
from ui.widgets.canvas import CanvasBatch
from ui.widgets.fitted_text import shorten
from ui.widgets.grid import Grid
from ui.widgets.grid_layout import GridLayout
from ui.widgets.photos import Key
from ui.widgets.theme import Theme

_GAP_PX, _TITLE_PX, _LABEL_PX = 8, 20, 18
_MIN_TILE_PX, _MAX_TILE_PX = 104, 240
_MAX_KEPT = 300
_DRAG_PX = 5
_STAR_PX = 26
_CHARS_PER_PX = 1 / 6.2
_MOVES = {"<Left>": (0, -1), "<Right>": (0, 1), "<Up>": (-1, 0), "<Down>": (1, 0)}

Place = tuple[int, int]  # row and column


@dataclass(frozen=True)
class SampleTable:
    """Rows are prompts, each followed by its samples without EMA; columns are the steps, in order."""

    samples: tuple[SampleReady, ...] = ()

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The steps of the columns."""
        return tuple(sorted({s.step for s in self.samples}))

    @cached_property
    def rows(self) -> tuple[tuple[int, bool], ...]:
        """The index of each row's prompt, and whether its samples are without EMA."""
        return tuple(sorted({(s.index, s.is_without_ema) for s in self.samples}))

    @cached_property
    def _by_place(self) -> Mapping[Place, SampleReady]:
        rows = {key: number for number, key in enumerate(self.rows)}
        columns = {step: number for number, step in enumerate(self.steps)}
        return {(rows[s.index, s.is_without_ema], columns[s.step]): s for s in self.samples}

    def at(self, row: int, column: int) -> SampleReady | None:
        """Return the sample of a prompt at a step; None if there is no sample."""
        return self._by_place.get((row, column))

    def place_of(self, sample: SampleReady) -> Place:
        """Return the row and the column of a sample."""
        return self.rows.index((sample.index, sample.is_without_ema)), self.steps.index(sample.step)

    def title(self, row: int) -> str:
        """Return the prompt of a row, as it was at its newest step."""
        sample = next((s for c in range(len(self.steps) - 1, -1, -1) if (s := self.at(row, c))), None)
        if sample is None:
            return ""
        return f"{sample.prompt} (without EMA)" if sample.is_without_ema else sample.prompt

    def move(self, place: Place, rows: int, columns: int) -> Place:
        """Return the place of the next sample in a direction, over gaps; the same place at the edge."""
        row, column = place
        while True:
            row, column = row + rows, column + columns
            if not (0 <= row < len(self.rows) and 0 <= column < len(self.steps)) or not (rows or columns):
                return place
            if self.at(row, column) is not None:
                return row, column

    def before(self, place: Place) -> Place:
        """Return the place of the sample that one is first compared with: the first of its prompt, or the next one."""
        first = next((c for c in range(len(self.steps)) if self.at(place[0], c) is not None), place[1])
        return (place[0], first) if first != place[1] else self.move(place, 0, 1)


class SampleGrid(Grid):
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
        super().__init__(master, theme, pump, most_photos=_MAX_KEPT, takes_focus=True, empty_text=empty_text)
        self.table = SampleTable()
        self.starred: Collection[Path] = frozenset()
        self.chosen: Place | None = None
        self._on_open, self._on_star = on_open, on_star
        self._drawn: GridLayout | None = None
        self._drawn_width = 0
        self._pressed: tuple[int, int, int, int] | None = None
        self._bind_events()

    def _bind_events(self) -> None:
        canvas = self.canvas
        canvas.bind("<Button-1>", self._press)
        canvas.bind("<B1-Motion>", self._drag)
        canvas.bind("<ButtonRelease-1>", self._release)
        for key, (rows, columns) in _MOVES.items():
            canvas.bind(key, lambda _e, rows=rows, columns=columns: self._choose(rows, columns))  # type: ignore[misc]
        canvas.bind("<FocusIn>", lambda _e: self._on_focus(), add="+")
        canvas.bind("<Return>", lambda _e: self._with_chosen(self._on_open))
        canvas.bind("<s>", lambda _e: self._with_chosen(self._on_star))

    def show(self, table: SampleTable, starred: Collection[Path]) -> None:
        """Show these samples; images that are already loaded are reused."""
        follows = self._is_at_end(self.layout(), self.canvas.winfo_width())
        self.table, self.starred = table, starred
        self.photos.keep_only({Path(s.path) for s in table.samples})
        if follows:
            self.left = self.layout().width  # drawing keeps it inside
        self.draw()

    def layout(self) -> GridLayout:
        """Return where the cells are: a title, an image and its step. As many columns as fit fill the width."""
        px, width, num_columns = self.theme.px, self.canvas.winfo_width(), max(1, len(self.table.steps))
        gap, least = px(_GAP_PX), px(_MIN_TILE_PX)
        fitting = max(1, min((width + gap) // (least + gap), num_columns))
        side = max(least, min((width - gap * (fitting - 1)) // fitting, px(_MAX_TILE_PX)))
        return GridLayout(
            len(self.table.rows) * len(self.table.steps),
            num_columns,
            side,
            px(_TITLE_PX) + side + px(_LABEL_PX),
            gap,
            live_top=px(_TITLE_PX),
            live_px=side,
        )

    def photo_key(self, number: int, layout: GridLayout) -> Key | None:
        """Return the key of a sample; None for a gap in the table."""
        sample = self.table.at(*divmod(number, layout.num_columns))
        return (Path(sample.path), layout.cell_width) if sample is not None else None

    def draw(self) -> None:
        """Draw the visible cells."""
        if self.canvas.winfo_width() > 1 and self.table.samples:
            self._keep_steps(self.layout(), self.canvas.winfo_width())
        super().draw()

    def draw_item(self, batch: CanvasBatch, layout: GridLayout, number: int, x: int, y: int) -> None:
        """Draw a sample with its step."""
        place = divmod(number, layout.num_columns)
        sample, key = self.table.at(*place), self.photo_key(number, layout)
        if sample is None or key is None:
            return
        side, colour, y = layout.cell_width, self.theme.colour, y + layout.live_top
        self.draw_photo(batch, key, x, y, side)
        if place == self.chosen and self.has_focus:
            batch.add("rectangle", x, y, x + side, y + side, outline=colour("accent"), width=self.theme.px(2))
        batch.add(
            "text", x, y + side + self.theme.px(2), text=f"step {sample.step:,}", anchor="nw",
            fill=colour("muted"), font=self.theme.font("caption"), tags="step",
        )  # fmt: skip
        if key[0] in self.starred or number == self.hovered:
            self._draw_star(batch, x + side, y, is_starred=key[0] in self.starred)

    def draw_above(self, batch: CanvasBatch, layout: GridLayout) -> None:
        """Write the prompts above their rows, and show which part of the steps is in view."""
        width = self.canvas.winfo_width()
        most = int(width * _CHARS_PER_PX / self.theme.scale)
        for row in sorted({number // layout.num_columns for number in self.visible(layout)}):
            y = layout.corner(row * layout.num_columns)[1] - self.top + layout.live_top // 2
            batch.add(
                "text", 0, y, text=shorten(self.table.title(row), most), anchor="w", tags="title",
                fill=self.theme.colour("label"), font=self.theme.font("small"),
            )  # fmt: skip
        if layout.width > width:
            self._draw_position(batch, width, self.canvas.winfo_height(), layout.width)

    def image_corner(self, place: Place) -> tuple[int, int]:
        """Return the top left of a sample's image on the canvas."""
        layout = self.layout()
        x, y = self.place_of(place[0] * layout.num_columns + place[1])
        return x, y + layout.live_top

    def pointed_at(self, event: tk.Event[Any]) -> None:
        """Offer a star on the sample under the pointer."""
        self.draw_soon()

    def _is_at_end(self, layout: GridLayout, width: int) -> bool:
        return self.left >= layout.width - width - self.theme.px(_GAP_PX)

    def _keep_steps(self, layout: GridLayout, width: int) -> None:
        """Keep the last step in view when the size of the window changes, or else the first one that is shown.

        The first drawing shows the last step: until then there was no size, and so no place.
        """
        before = self._drawn
        if before is None or (before.cell_width, self._drawn_width) != (layout.cell_width, width):
            if before is None or self._is_at_end(before, self._drawn_width):
                self.left = layout.width
            else:
                self.left = round(self.left / before.column_px) * layout.column_px
        self._drawn, self._drawn_width = layout, width

    def _draw_star(self, batch: CanvasBatch, right: int, top: int, *, is_starred: bool) -> None:
        side = self.theme.px(_STAR_PX)
        batch.add("rectangle", right - side, top, right, top + side, fill=self.theme.colour("tip"), width=0)
        batch.add(
            "text", right - side / 2, top + side / 2, text="★" if is_starred else "☆", tags="star",
            fill=self.theme.colour("accent" if is_starred else "on_tip"), font=self.theme.font("heading"),
        )  # fmt: skip

    def _draw_position(self, batch: CanvasBatch, width: int, height: int, whole: int) -> None:
        y, thick, colour = height - self.theme.px(2), self.theme.px(3), self.theme.colour
        batch.add("line", 0, y, width, y, fill=colour("chart_grid"), width=thick)
        left, right = self.left / whole * width, (self.left + width) / whole * width
        batch.add("line", left, y, right, y, fill=colour("track"), width=thick, tags="position")

    # -- moving

    def _wheel(self, event: tk.Event[Any]) -> str:
        is_sideways = isinstance(event.state, int) and bool(event.state & 1)
        if not is_sideways and self.layout().height > self.canvas.winfo_height():
            return super()._wheel(event)
        by = self.theme.px(self.wheel_px)
        self.left += -by if event.num == 4 or event.delta > 0 else by
        self.draw_soon()
        return "break"

    def _press(self, event: tk.Event[Any]) -> None:
        self.canvas.focus_set()
        self._pressed = (event.x, event.y, self.left, self.top)

    def _drag(self, event: tk.Event[Any]) -> None:
        if self._pressed is not None and self._is_drag(event):
            x, y, left, top = self._pressed
            self.left, self.top = left + x - event.x, top + y - event.y
            self.draw()

    def _release(self, event: tk.Event[Any]) -> None:
        if self._pressed is None or self._is_drag(event):
            self._pressed = None
            return
        self._pressed = None
        number, layout = self.number_at(event.x, event.y), self.layout()
        place = divmod(number, layout.num_columns) if number is not None else None
        if place is None or self.table.at(*place) is None:
            return
        self.chosen = place
        (x, y), side = self.image_corner(place), self.theme.px(_STAR_PX)
        is_star = event.x >= x + layout.cell_width - side and event.y < y + side
        (self._on_star if is_star else self._on_open)(place)

    def _is_drag(self, event: tk.Event[Any]) -> bool:
        assert self._pressed is not None
        return max(abs(event.x - self._pressed[0]), abs(event.y - self._pressed[1])) > self.theme.px(_DRAG_PX)

    def _choose(self, rows: int, columns: int) -> str:
        if self.table.samples:
            newest = self.table.place_of(self.table.samples[-1])
            self.chosen = self.table.move(self.chosen, rows, columns) if self.chosen else newest
            self._see_sample(self.chosen)
        return "break"

    def _on_focus(self) -> None:
        """Show where the keys begin, unless a click chooses."""
        if self.chosen is None and self._pressed is None:
            self._choose(0, 0)

    def _see_sample(self, place: Place) -> None:
        layout = self.layout()
        number = place[0] * layout.num_columns + place[1]
        x = layout.corner(number)[0]
        self.left = max(x + layout.cell_width - self.canvas.winfo_width(), min(self.left, x))
        self.top = layout.top_to_see(number, self.top, self.canvas.winfo_height())
        self.draw()

    def _with_chosen(self, act: Callable[[Place], object]) -> None:
        if self.chosen is not None and self.table.at(*self.chosen) is not None:
            act(self.chosen)
