"""The entries of a folder: rows with columns, or tiles with thumbnails. Only what is visible is drawn."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from ui.loop.pump import Pump
from ui.widgets.auto_bar import AutoBar
from ui.widgets.canvas import CanvasBatch
from ui.widgets.files.board_layout import BoardLayout, rows_layout, tiles_layout
from ui.widgets.files.browser import Browser, Select, SortKey
from ui.widgets.files.listing import Entry
from ui.widgets.fitted_text import FittedTexts
from ui.widgets.focus import focused_widget
from ui.widgets.panel import Panel
from ui.widgets.photos import Photos
from ui.widgets.theme import Theme

_ROW_PX, _HEADING_PX, _ICON_PX, _GAP_PX = 30, 26, 20, 10
_TILE_WIDTH_PX, _TILE_HEIGHT_PX, _THUMB_PX = 128, 138, 104
_SECOND_PX, _THIRD_PX = 170, 130  # widths of the columns at the right
_WHEEL_ROWS = 3
_MAX_PHOTOS = 400
_CONTROL, _SHIFT = 0x4, 0x1
_HEADINGS: tuple[tuple[SortKey, str], ...] = (("name", "Name"), ("size", "Contents or size"), ("modified", "Changed"))


class FileBoard(Panel):
    """Draws a browser's entries. `detail_of(entry)` returns the second column, `on_activate` a double click or Return.

    Arrows, Page Up, Page Down, Home and End move; Shift extends; letters find.
    """

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
        super().__init__(master, theme, "card")
        self.browser = browser
        self.as_tiles = False
        self.empty_text = ""
        self.top = 0
        self._pump, self._detail_of, self._on_select, self._on_activate = pump, detail_of, on_select, on_activate
        self._texts = FittedTexts(self, theme)
        self.heading = tk.Canvas(self, height=theme.px(_HEADING_PX), highlightthickness=0, borderwidth=0)
        self.canvas = tk.Canvas(self, highlightthickness=0, borderwidth=0, takefocus=True)
        self.photos = Photos(self.canvas, pump, self.redraw, most=_MAX_PHOTOS)
        self._bar = AutoBar(self, theme, self._scroll_by_bar, on="card")
        self.columnconfigure(0, weight=1)
        self.rowconfigure(1, weight=1)
        self.heading.grid(row=0, column=0, columnspan=2, sticky="ew")
        self.canvas.grid(row=1, column=0, sticky="nsew")
        self._bar.grid(row=1, column=1, sticky="ns")
        self._bind()
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        super().apply_theme()
        if hasattr(self, "canvas"):
            for canvas in (self.canvas, self.heading):
                canvas.configure(background=self.theme.colour("card"))
            self.redraw()

    def show_folder(self) -> None:
        """Show the entries of another folder from the top; thumbnails of the last one are cancelled."""
        self.photos.load_only(())
        self.top = 0
        self.see_cursor()

    def see_cursor(self) -> None:
        """Scroll to the entry at the cursor."""
        if self.browser.cursor >= 0:
            self.top = self.layout().top_to_see(self.browser.cursor, self.top, self.canvas.winfo_height())
        self.redraw()

    def redraw(self) -> None:
        """Draw again on a coming turn."""
        self._pump.redraw_soon(self, self.draw)

    def destroy(self) -> None:
        """Also cancel the thumbnails that are being loaded."""
        self._pump.forget(self)
        self.photos.close()
        super().destroy()

    def layout(self) -> BoardLayout:
        """Return where the entries are."""
        num, width, px = len(self.browser.shown), self.canvas.winfo_width(), self.theme.px
        if self.as_tiles:
            return tiles_layout(num, width, px(_TILE_WIDTH_PX), px(_TILE_HEIGHT_PX))
        return rows_layout(num, width, px(_ROW_PX))

    # -- drawing

    def draw(self) -> None:
        """Draw what is visible."""
        width, height = self.canvas.winfo_width(), self.canvas.winfo_height()
        if width <= 1:
            return
        layout = self.layout()
        self.top = max(0, min(self.top, layout.height - height))
        whole = max(1, layout.height)
        self._bar.set(self.top / whole, min(1.0, (self.top + height) / whole))
        batch = CanvasBatch(self.canvas)
        visible = layout.visible(self.top, height)
        self._load_photos([self.browser.shown[i] for i in visible])
        for index in visible:
            x, y = layout.place(index)
            self._draw_ground(batch, layout, index, x, y - self.top)
            draw = self._draw_tile if self.as_tiles else self._draw_row
            draw(batch, self.browser.shown[index], x, y - self.top, layout.cell_width)
        if not self.browser.shown and self.empty_text:
            batch.add(
                "text", width / 2, height / 3, text=self.empty_text, width=max(60, width - 40), justify="center",
                fill=self.theme.colour("faint"), font=self.theme.font("body"),
            )  # fmt: skip
        batch.draw()
        self._draw_heading(width)

    def _load_photos(self, entries: Sequence[Entry]) -> None:
        side = self.theme.px(_THUMB_PX if self.as_tiles else _ICON_PX)
        keys = [(e.path, side) for e in entries if e.is_image]
        self.photos.load_only(keys)
        for key in keys:
            self.photos.load(key)

    def _draw_ground(self, batch: CanvasBatch, layout: BoardLayout, index: int, x: int, y: int) -> None:
        colour, inset = self.theme.colour, self.theme.px(2)
        box = (x + inset, y + 1, x + layout.cell_width - inset, y + layout.cell_height - 1)
        if index in self.browser.selected:
            batch.add("rectangle", *box, fill=colour("selection"), width=0)
        if index == self.browser.cursor and focused_widget(self.canvas) is self.canvas:
            batch.add("rectangle", *box, outline=colour("accent"))

    def _draw_row(self, batch: CanvasBatch, entry: Entry, x: int, y: int, width: int) -> None:
        theme, px = self.theme, self.theme.px
        middle, gap = y + px(_ROW_PX) / 2, px(_GAP_PX)
        self._draw_icon(batch, entry, x + gap, y + px(_ROW_PX - _ICON_PX) // 2, px(_ICON_PX))
        left = x + 2 * gap + px(_ICON_PX)
        second, third = self._columns(width)
        ink = theme.colour("text" if self._is_choosable(entry) else "muted")
        name = self._texts.fitted(entry.name, "body", second - left - gap)
        batch.add("text", left, middle, text=name, anchor="w", fill=ink, font=theme.font("body"))
        for at, end, text in (
            (second, third, self._detail_of(entry)),
            (third, width, changed_words(entry.modified_seconds)),
        ):
            if end > at:
                batch.add(
                    "text", at, middle, text=self._texts.fitted(text, "small", end - at - gap), anchor="w",
                    fill=theme.colour("muted"), font=theme.font("small"),
                )  # fmt: skip

    def _draw_tile(self, batch: CanvasBatch, entry: Entry, x: int, y: int, width: int) -> None:
        theme, px = self.theme, self.theme.px
        side = px(_THUMB_PX)
        self._draw_icon(batch, entry, x + (width - side) // 2, y + px(6), side)
        ink = theme.colour("text" if self._is_choosable(entry) else "muted")
        name = self._texts.fitted(entry.name, "small", width - px(12))
        batch.add(
            "text", x + width / 2, y + px(_TILE_HEIGHT_PX - 14), text=name, fill=ink, font=theme.font("small")
        )  # fmt: skip

    def _draw_icon(self, batch: CanvasBatch, entry: Entry, x: int, y: int, side: int) -> None:
        """Draw a thumbnail, a folder, or a sheet."""
        colour = self.theme.colour
        photo = self.photos.get((entry.path, side)) if entry.is_image else None
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
        canvas.bind("<Configure>", lambda _e: self.redraw())
        canvas.bind("<FocusIn>", self._on_focus)
        canvas.bind("<FocusOut>", lambda _e: self.redraw())
        canvas.bind("<Button-1>", self._on_click)
        canvas.bind("<Double-Button-1>", self._double_clicked)
        self.heading.bind("<Button-1>", self._heading_clicked)
        for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
            canvas.bind(sequence, self._wheel)
        for key in ("Up", "Down", "Left", "Right", "Prior", "Next", "Home", "End"):
            canvas.bind(f"<{key}>", self._arrow)
        canvas.bind("<Return>", self._on_return)
        canvas.bind("<KP_Enter>", self._on_return)

    def _on_focus(self, _event: object) -> None:
        if self.browser.cursor < 0 and self.browser.shown:
            self.browser.cursor = 0
        self.redraw()

    def _on_click(self, event: tk.Event[Any]) -> str:
        self.canvas.focus_set()
        state = int(event.state)
        how: Select = "toggle" if state & _CONTROL else "extend" if state & _SHIFT else "only"
        self.browser.select(self.layout().index_at(event.x, event.y + self.top), how)
        self._follow_change()
        return "break"

    def _double_clicked(self, event: tk.Event[Any]) -> str:
        if self.layout().index_at(event.x, event.y + self.top) >= 0:
            self._on_activate()
        return "break"

    def _heading_clicked(self, event: tk.Event[Any]) -> None:
        second, third = self._columns(self.canvas.winfo_width())
        self.browser.sort_by("name" if event.x < second else "size" if event.x < third else "modified")
        self.see_cursor()

    def _arrow(self, event: tk.Event[Any]) -> str:
        layout = self.layout()
        page = max(1, self.canvas.winfo_height() // layout.cell_height - 1) * layout.columns
        by = {
            "Up": -layout.columns, "Down": layout.columns, "Left": -1, "Right": 1, "Prior": -page, "Next": page,
            "Home": -layout.num_cells, "End": layout.num_cells,
        }[event.keysym]  # fmt: skip
        if self.browser.cursor < 0:
            by = 1
        self.browser.move(by, extend=bool(int(event.state) & _SHIFT))
        self.see_cursor()
        self._follow_change()
        return "break"

    def _on_return(self, _event: object) -> str:
        self._on_activate()
        return "break"

    def _follow_change(self) -> None:
        self.redraw()
        self._on_select()

    def _wheel(self, event: tk.Event[Any]) -> str:
        is_up = event.num == 4 or event.delta > 0
        rows = 1 if self.as_tiles else _WHEEL_ROWS
        self.top += (-1 if is_up else 1) * rows * self.layout().cell_height // (2 if self.as_tiles else 1)
        self.redraw()
        return "break"

    def _scroll_by_bar(self, kind: str, amount: Any, _unit: str = "") -> None:
        layout = self.layout()
        is_moved = kind == "moveto"
        self.top = int(float(amount) * layout.height) if is_moved else self.top + int(amount) * layout.cell_height
        self.redraw()


def size_words(size_bytes: int) -> str:
    """Return a size: 812 B, 4.0 KB, 1.6 GB."""
    size = float(size_bytes)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def changed_words(seconds: float) -> str:
    """Return a modification time: 2026-01-31 17:05."""
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}" if seconds else ""
