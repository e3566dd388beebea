"""The grid of checkpoints: a row for each with its figures, a column for each prompt."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from typing import Any

from ui.features.checkpoints.model import CheckpointTable, Row
from ui.loop.pump import Pump
from ui.widgets.canvas import CanvasBatch
from ui.widgets.fitted_text import shorten
from ui.widgets.grid import Grid
from ui.widgets.grid_layout import GridLayout
from ui.widgets.photos import Key
from ui.widgets.theme import Theme

_LABEL_PX, _HEADER_PX, _GAP_PX, _LINE_PX, _INSET_PX = 236, 30, 8, 17, 8
_MIN_SIDE_PX, _MAX_SIDE_PX, _SIDE_STEP_PX = 112, 208, 8
_MAX_KEPT = 400
_CHARS_PER_PX = 1 / 6.4

Place = tuple[int, int]  # row and column


class CheckpointGrid(Grid):
    """Call `show`; a click on an image calls `on_open(place)`, one on the figures of a row `on_choose(row)`.

    Up and Down move among the rows, Space chooses one, Return opens its first image. The wheel with Shift moves
    sideways.
    """

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        pump: Pump,
        *,
        on_open: Callable[[Place], object],
        on_choose: Callable[[Row], object],
    ) -> None:
        super().__init__(master, theme, pump, most_photos=_MAX_KEPT, takes_focus=True, on_click=self._open_number)
        self.table = CheckpointTable()
        self.chosen: tuple[Row, ...] = ()
        self.strength = 1.0
        self.current = 0  # the row of the keys
        self._figures: dict[Row, list[tuple[str, bool]]] = {}
        self._on_open, self._on_choose = on_open, on_choose
        keys: dict[str, Callable[[], object]] = {
            "<Up>": lambda: self._move(-1),
            "<Down>": lambda: self._move(1),
            "<space>": self._choose_current,
            "<Return>": lambda: self._open_number(self.current * max(1, len(self.table.columns))),
        }
        for sequence, press in keys.items():
            self.canvas.bind(sequence, lambda _e, press=press: (press(), "break")[1])  # type: ignore[misc]

    def show(self, table: CheckpointTable, strength: float, chosen: tuple[Row, ...]) -> None:
        """Show the images of a strength; images that are already loaded are reused."""
        if table is not self.table or strength != self.strength:  # a running job often shows the same table
            self._figures = table.figures(strength)
        self.table, self.strength, self.chosen = table, strength, chosen
        self.current = min(self.current, max(0, len(table.rows) - 1))
        self.draw()

    def layout(self) -> GridLayout:
        """Return where the images are, right of the figures and below the prompts."""
        px, columns = self.theme.px, max(1, len(self.table.columns))
        gap, left, step = px(_GAP_PX), px(_LABEL_PX), _SIDE_STEP_PX
        room = (self.canvas.winfo_width() - left - gap * (columns - 1)) // columns // step * step
        side = max(px(_MIN_SIDE_PX), min(room, px(_MAX_SIDE_PX)))
        lines = 2 + max((len(lines) for lines in self._figures.values()), default=0)
        height = max(side, px(_LINE_PX) * lines + 2 * px(_INSET_PX))
        num_cells = len(self.table.rows) * columns if self.table.columns else 0
        return GridLayout(num_cells, columns, side, height, gap, live_px=side, left=left, top=px(_HEADER_PX))

    def photo_key(self, number: int, layout: GridLayout) -> Key | None:
        """Return the key of an image; None if there is none yet."""
        row, column = divmod(number, layout.num_columns)
        image = self.table.image(self.table.rows[row], self.table.columns[column], self.strength)
        return None if image is None else (image, layout.cell_width)

    def draw_item(self, batch: CanvasBatch, layout: GridLayout, number: int, x: int, y: int) -> None:
        """Draw an image, or the plate where it will be."""
        key, side = self.photo_key(number, layout), layout.cell_width
        if key is not None:
            self.draw_photo(batch, key, x, y, side)
        else:
            batch.add("rectangle", x, y, x + side, y + side, fill=self.theme.colour("field"), width=0)
        if number == self.hovered and key is not None:
            line = self.theme.px(2)
            batch.add("rectangle", x, y, x + side, y + side, outline=self.theme.colour("accent"), width=line)

    def draw_above(self, batch: CanvasBatch, layout: GridLayout) -> None:
        """Draw the figures and the prompts over the images, which move below them."""
        if not layout.count:
            return
        colour, px = self.theme.colour, self.theme.px
        width, height = self.canvas.winfo_width(), self.canvas.winfo_height()
        label = px(_LABEL_PX) - px(_GAP_PX)
        batch.add("rectangle", 0, 0, label, height, fill=colour(self.token), width=0)
        for row in range(len(self.table.rows)):
            top = layout.corner(row * layout.num_columns)[1] - self.top
            if -layout.row_px < top < height:
                self._draw_figures(batch, self.table.rows[row], row, top, label, layout.cell_height)
        batch.add("rectangle", 0, 0, width, px(_HEADER_PX), fill=colour(self.token), width=0)
        most = int(layout.cell_width * _CHARS_PER_PX / self.theme.scale)
        for number, column in enumerate(self.table.columns):
            x = layout.corner(number)[0] - self.left
            if x >= label:
                seed = f" (seed {column.seed})" if self._has_seeds else ""
                text = shorten(column.prompt, max(4, most - len(seed))) + seed
                batch.add(
                    "text", x, px(_HEADER_PX) / 2, text=text, anchor="w", fill=colour("label"),
                    font=self.theme.font("small"), tags="prompt",
                )  # fmt: skip

    @property
    def _has_seeds(self) -> bool:
        prompts = [column.prompt for column in self.table.columns]
        return len(set(prompts)) < len(prompts)

    def _draw_figures(self, batch: CanvasBatch, row: Row, number: int, top: int, width: int, height: int) -> None:
        colour, px = self.theme.colour, self.theme.px
        is_chosen, has_focus = row in self.chosen, self.has_focus and number == self.current
        plate, line = ("selection" if is_chosen else "field"), ("accent" if has_focus else "")
        batch.add(
            "rectangle", 1, top + 1, width - 1, top + height - 1, fill=colour(plate),
            outline=colour(line) if line else "", width=px(2) if line else 0, tags="row",
        )  # fmt: skip
        x, y, most = px(_INSET_PX), top + px(_INSET_PX), int(width * _CHARS_PER_PX / self.theme.scale)
        kinds = ", ".join(row.checkpoint.kinds)
        lines = [
            (f"{'✓ ' if is_chosen else ''}{row.checkpoint.label}", "text", "strong"),
            (shorten(f"{row.run_name} {kinds}".strip(), most), "muted", "small"),
            *((text + (" · best" if is_best else ""), "good" if is_best else "label", "small")
              for text, is_best in self._figures.get(row, ())),
        ]  # fmt: skip
        for text, token, role in lines:
            batch.add(
                "text", x, y, text=text, anchor="nw", fill=colour(token), font=self.theme.font(role), tags="figure"
            )
            y += px(_LINE_PX)

    def row_at(self, x: int, y: int) -> int | None:
        """Return the row whose figures are at a place on the canvas."""
        layout = self.layout()
        if not layout.count or x >= layout.left or y < layout.top:
            return None
        row = (y + self.top - layout.top) // layout.row_px
        return row if 0 <= row < len(self.table.rows) else None

    def number_at(self, x: int, y: int) -> int | None:
        """Return the image at a place on the canvas, unless figures or prompts cover it."""
        layout = self.layout()
        return None if x < layout.left or y < layout.top else super().number_at(x, y)

    def pointed_at(self, event: tk.Event[Any]) -> None:
        """Frame the image under the pointer."""
        self.canvas.configure(cursor="hand2" if self.hovered is not None else "")
        self.draw_soon()

    def _clicked(self, event: tk.Event[Any]) -> None:
        row = self.row_at(event.x, event.y)
        if row is None:
            super()._clicked(event)
            return
        self.canvas.focus_set()
        self.current = row
        self._on_choose(self.table.rows[row])

    def _wheel(self, event: tk.Event[Any]) -> str:
        if not (isinstance(event.state, int) and event.state & 1):
            return super()._wheel(event)
        by = self.theme.px(self.wheel_px)
        self.left += -by if event.num == 4 or event.delta > 0 else by
        self.draw_soon()
        return "break"

    def _move(self, by: int) -> None:
        if self.table.rows:
            self.current = min(max(0, self.current + by), len(self.table.rows) - 1)
            self.see(self.current * max(1, len(self.table.columns)))

    def _choose_current(self) -> None:
        if self.table.rows:
            self._on_choose(self.table.rows[self.current])

    def _open_number(self, number: int) -> None:
        layout = self.layout()
        if number < layout.count and self.photo_key(number, layout) is not None:
            self._on_open(divmod(number, layout.num_columns))
