"""The entries of a folder: rows with columns, or tiles with thumbnails."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from datetime import datetime
from typing import Any

from ui.loop.pump import Pump
from ui.widgets.canvas import CanvasBatch
from ui.widgets.files.browser import Browser, Select, SortKey
from ui.widgets.files.listing import Entry
from ui.widgets.fitted_text import FittedTexts
from ui.widgets.grid import Grid
from ui.widgets.grid_layout import GridLayout, tile_layout
from ui.widgets.photos import Key
from ui.widgets.theme import Theme

_ROW_PX, _HEADING_PX, _ICON_PX, _GAP_PX = 30, 26, 20, 10
_TILE_WIDTH_PX, _TILE_HEIGHT_PX, _THUMB_PX = 128, 138, 104
_SECOND_PX, _THIRD_PX = 170, 130  # widths of the columns at the right
_WHEEL_ROWS = 3
_MAX_PHOTOS = 400
_CONTROL, _SHIFT = 0x4, 0x1
_HEADINGS: tuple[tuple[SortKey, str], ...] = (("name", "Name"), ("size", "Contents or size"), ("modified", "Changed"))


class FileBoard(Grid):
    """Draws a browser's entries. `detail_of(entry)` returns the second column, `on_activate` a double click or Return.

    Arrows, Page Up, Page Down, Home and End move; Shift extends; letters find.
    """

    wheel_px = _WHEEL_ROWS * _ROW_PX

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        pump: Pump,
        browser: Browser,
        *,
        detail_of: Callable[[Entry], str],
        on_select: Callable[[], None],
        on_activate: Callable[[], None],
    ) -> None:
        super().__init__(master, theme, pump, most_photos=_MAX_PHOTOS, takes_focus=True)
        self.browser = browser
        self.as_tiles = False
        self._detail_of, self._on_select, self._on_activate = detail_of, on_select, on_activate
        self._texts = FittedTexts(self, theme)
        self.heading = tk.Canvas(self, height=theme.px(_HEADING_PX), highlightthickness=0, borderwidth=0)
        self.heading.grid(row=0, column=0, columnspan=2, sticky="ew")
        self._bind()
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        super().apply_theme()
        self.heading.configure(background=self.theme.colour("card"))

    def show_folder(self) -> None:
        """Show the entries of another folder from the top; thumbnails of the last one are cancelled."""
        self.photos.load_only(())
        self.top = 0
        self.see_cursor()

    def see_cursor(self) -> None:
        """Scroll to the entry at the cursor."""
        if self.browser.cursor >= 0:
            self.see(self.browser.cursor)
        self.draw_soon()

    def layout(self) -> GridLayout:
        """Return where the entries are."""
        count, width, px = len(self.browser.shown), self.canvas.winfo_width(), self.theme.px
        if self.as_tiles:
            return tile_layout(count, width, px(_TILE_WIDTH_PX), px(_TILE_HEIGHT_PX))
        return GridLayout(count, 1, max(1, width), px(_ROW_PX))

    def photo_key(self, number: int, layout: GridLayout) -> Key | None:
        """Return the key of an entry's thumbnail."""
        entry = self.browser.shown[number]
        return (entry.path, self.theme.px(_THUMB_PX if self.as_tiles else _ICON_PX)) if entry.is_image else None

    # -- drawing

    def draw(self) -> None:
        """Draw what is visible."""
        super().draw()
        if self.canvas.winfo_width() > 1:
            self._draw_heading(self.canvas.winfo_width())

    def draw_item(self, batch: CanvasBatch, layout: GridLayout, number: int, x: int, y: int) -> None:
        """Draw an entry."""
        colour, inset = self.theme.colour, self.theme.px(2)
        box = (x + inset, y + 1, x + layout.cell_width - inset, y + layout.cell_height - 1)
        if number in self.browser.selected:
            batch.add("rectangle", *box, fill=colour("selection"), width=0)
        if number == self.browser.cursor and self.has_focus:
            batch.add("rectangle", *box, outline=colour("accent"))
        draw = self._draw_tile if self.as_tiles else self._draw_row
        draw(batch, self.browser.shown[number], x, y, layout.cell_width)

    def _draw_row(self, batch: CanvasBatch, entry: Entry, x: int, y: int, width: int) -> None:
        theme, px = self.theme, self.theme.px
        middle, gap = y + px(_ROW_PX) / 2, px(_GAP_PX)
        self._draw_icon(batch, entry, x + gap, y + px(_ROW_PX - _ICON_PX) // 2, px(_ICON_PX))
        left = x + 2 * gap + px(_ICON_PX)
        second, third = self._columns(width)
        ink = theme.colour("text" if self._is_choosable(entry) else "muted")
        name = self._texts.fit(entry.name, "body", second - left - gap)
        batch.add("text", left, middle, text=name, anchor="w", fill=ink, font=theme.font("body"))
        for at, end, text in (
            (second, third, self._detail_of(entry)),
            (third, width, changed_words(entry.modified_seconds)),
        ):
            if end > at:
                batch.add(
                    "text", at, middle, text=self._texts.fit(text, "small", end - at - gap), anchor="w",
                    fill=theme.colour("muted"), font=theme.font("small"),
                )  # fmt: skip

    def _draw_tile(self, batch: CanvasBatch, entry: Entry, x: int, y: int, width: int) -> None:
        theme, px = self.theme, self.theme.px
        side = px(_THUMB_PX)
        self._draw_icon(batch, entry, x + (width - side) // 2, y + px(6), side)
        ink = theme.colour("text" if self._is_choosable(entry) else "muted")
        name = self._texts.fit(entry.name, "small", width - px(12))
        batch.add(
            "text", x + width / 2, y + px(_TILE_HEIGHT_PX - 14), text=name, fill=ink, font=theme.font("small")
        )  # fmt: skip

    def _draw_icon(self, batch: CanvasBatch, entry: Entry, x: int, y: int, side: int) -> None:
        """Draw a thumbnail, a folder, or a sheet."""
        colour = self.theme.colour
        photo = self.photo((entry.path, side)) if entry.is_image else None
        if photo is not None:
            batch.add("image", x + side / 2, y + side / 2, image=photo)
        elif entry.is_folder:
            inset, ear = side * 0.08, side * 0.14
            top, right = y + side * 0.2, x + side - inset
            batch.add(
                "polygon", x + inset, top, x + side * 0.42, top, x + side * 0.52, top + ear, right, top + ear,
                right, y + side * 0.84, x + inset, y + side * 0.84, fill=colour("accent"),
            )  # fmt: skip
        else:
            left, right, ear = x + side * 0.2, x + side * 0.8, side * 0.2
            fill = colour("field" if entry.is_image else "track")
            batch.add(
                "polygon", left, y + side * 0.08, right - ear, y + side * 0.08, right, y + side * 0.08 + ear,
                right, y + side * 0.92, left, y + side * 0.92, fill=fill,
            )  # fmt: skip

    def _draw_heading(self, width: int) -> None:
        theme, px, heading = self.theme, self.theme.px, self.heading
        heading.delete("all")
        starts = (px(_GAP_PX), *self._columns(width))
        for (key, label), x in zip(_HEADINGS, starts, strict=True):
            if x >= width:
                continue
            is_sorted = key == self.browser.sort
            mark = (" ▼" if self.browser.is_descending else " ▲") if is_sorted else ""
            heading.create_text(
                x, px(_HEADING_PX) / 2, text=label + mark, anchor="w", font=theme.font("small"),
                fill=theme.colour("text" if is_sorted else "muted"),
            )  # fmt: skip
        heading.create_line(0, px(_HEADING_PX) - 1, width, px(_HEADING_PX) - 1, fill=theme.colour("line"))

    def _columns(self, width: int) -> tuple[int, int]:
        """Return where the second and third column begin; a narrow list has fewer."""
        px = self.theme.px
        if width < px(420):
            return width, width
        return width - px(_SECOND_PX + _THIRD_PX), width - px(_THIRD_PX)

    def _is_choosable(self, entry: Entry) -> bool:
        return entry.is_folder or self.browser.purpose in ("open", "save")

    # -- input

    def _bind(self) -> None:
        canvas = self.canvas
        canvas.bind("<FocusIn>", self._on_focus, add="+")
        canvas.bind("<Button-1>", self._entry_clicked)
        canvas.bind("<Double-Button-1>", self._double_clicked)
        self.heading.bind("<Button-1>", self._heading_clicked)
        for key in ("Up", "Down", "Left", "Right", "Prior", "Next", "Home", "End"):
            canvas.bind(f"<{key}>", self._arrow)
        canvas.bind("<Return>", self._on_return)
        canvas.bind("<KP_Enter>", self._on_return)

    def _on_focus(self, _event: object) -> None:
        if self.browser.cursor < 0 and self.browser.shown:
            self.browser.cursor = 0

    def _entry_clicked(self, event: tk.Event[Any]) -> str:
        self.canvas.focus_set()
        state = int(event.state)
        how: Select = "toggle" if state & _CONTROL else "extend" if state & _SHIFT else "only"
        number = self.number_at(event.x, event.y)
        self.browser.select(-1 if number is None else number, how)
        self._follow_change()
        return "break"

    def _double_clicked(self, event: tk.Event[Any]) -> str:
        if self.number_at(event.x, event.y) is not None:
            self._on_activate()
        return "break"

    def _heading_clicked(self, event: tk.Event[Any]) -> None:
        second, third = self._columns(self.canvas.winfo_width())
        self.browser.sort_by("name" if event.x < second else "size" if event.x < third else "modified")
        self.see_cursor()

    def _arrow(self, event: tk.Event[Any]) -> str:
        cursor = self.browser.cursor
        layout = self.layout()
        page_px = self.canvas.winfo_height() - layout.row_px  # a page keeps one row of the last one in view
        by = layout.step(event.keysym, cursor, page_px) if cursor >= 0 else 1
        self.browser.move(by, extend=bool(int(event.state) & _SHIFT))
        self.see_cursor()
        self._follow_change()
        return "break"

    def _on_return(self, _event: object) -> str:
        self._on_activate()
        return "break"

    def _follow_change(self) -> None:
        self.draw_soon()
        self._on_select()


def changed_words(seconds: float) -> str:
    """Return a modification time: 2026-01-31 17:05."""
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}" if seconds else ""
