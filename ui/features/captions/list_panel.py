"""The list of images at the left: where they are from, a search, what is listed, and the images themselves."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.system.problem import count
from ui.features.captions.image_set import LIST_FILTERS, ListFilter
from ui.features.captions.session import EditorSession
from ui.forms.context import Context
from ui.loop.pump import Pump
from ui.widgets.canvas import CanvasBatch
from ui.widgets.controls import Choice
from ui.widgets.entry import Entry
from ui.widgets.fitted_text import FittedTexts
from ui.widgets.grid import Grid
from ui.widgets.grid_layout import GridLayout
from ui.widgets.panel import Panel, Text
from ui.widgets.photos import Key
from ui.widgets.theme import GAP, Theme
from ui.widgets.variables import TextVar

OTHER_FOLDER = "other"
_NOTHING = "No images are listed."
_ROW_PX, _IMAGE_PX, _GAP_PX = 58, 46, 6
_MAX_KEPT = 200
_MAX_CHARS = 120


@dataclass(frozen=True, slots=True)
class Line:
    """A row: its name, the text below, the colour token of that text, and a mark at the right."""

    name: str
    text: str = ""
    token: str = "muted"
    mark: str = ""


class ThumbnailList(Grid):
    """Call `show` with images; `line_of(index)` returns a row when it is drawn, `on_choose(index)` a click.

    Home and End choose as well; the editor's keys move up and down.
    """

    wheel_px = 2 * _ROW_PX

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        pump: Pump,
        *,
        line_of: Callable[[int], Line],
        on_choose: Callable[[int], object],
        empty_text: str = "",
    ) -> None:
        super().__init__(
            master, theme, pump, most_photos=_MAX_KEPT, takes_focus=True, empty_text=empty_text, on_click=on_choose
        )
        self.images: Sequence[Path] = ()
        self.chosen = -1
        self._texts = FittedTexts(self.canvas, theme)
        self._line_of = line_of
        for key in ("Home", "End"):
            self.canvas.bind(f"<{key}>", lambda _e, key=key: self._choose_by(key, on_choose))  # type: ignore[misc]

    def show(self, images: Sequence[Path], chosen: int) -> None:
        """Show other images; thumbnails that are loaded stay."""
        self.images = images
        self.photos.keep_only(set(images))
        self.choose(chosen)

    def choose(self, index: int) -> None:
        """Mark a row and scroll to it."""
        self.chosen = index
        if index >= 0:
            self.see(index)
        self.draw_soon()

    def layout(self) -> GridLayout:
        """Return the rows."""
        return GridLayout(len(self.images), 1, max(1, self.canvas.winfo_width()), self.theme.px(_ROW_PX))

    def photo_key(self, number: int, layout: GridLayout) -> Key:
        """Return the key of a row's thumbnail."""
        return self.images[number], self.theme.px(_IMAGE_PX)

    def draw_item(self, batch: CanvasBatch, layout: GridLayout, number: int, x: int, y: int) -> None:
        """Draw a row."""
        theme, width, row_px = self.theme, layout.cell_width, layout.cell_height
        side, gap = theme.px(_IMAGE_PX), theme.px(_GAP_PX)
        if number == self.chosen:
            batch.add("rectangle", 0, y, width, y + row_px, fill=theme.colour("selection"), width=0)
        self.draw_photo(batch, self.photo_key(number, layout), gap, y + gap, side)
        line, left = self._line_of(number), 2 * gap + side
        mark_px = self._texts.width(f"  {line.mark}", "small") if line.mark else 0
        for text, token, role, at, room in (
            (line.name, "text", "small", 0.32, width - left - gap - mark_px),
            (line.text[:_MAX_CHARS], line.token, "caption", 0.68, width - left - gap),
        ):
            batch.add(
                "text", left, y + row_px * at, text=self._texts.fit(text, role, room), anchor="w",
                fill=theme.colour(token), font=theme.font(role),
            )  # fmt: skip
        if line.mark:
            batch.add(
                "text", width - gap, y + row_px * 0.32, text=line.mark, anchor="e",
                fill=theme.colour("accent"), font=theme.font("caption"),
            )  # fmt: skip

    def _choose_by(self, key: str, choose: Callable[[int], object]) -> str:
        if self.images:
            choose(self.layout().go(max(0, self.chosen), key, self.canvas.winfo_height()))
        return "break"


class ListPanel(Panel):
    """Calls `on_source(name)`, `on_select(filter, search)` and `on_choose(index)`."""

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        session: EditorSession,
        *,
        sources: Mapping[str, str],
        on_source: Callable[[str], object],
        on_select: Callable[[ListFilter, str], object],
        on_choose: Callable[[int], object],
    ) -> None:
        super().__init__(master, context.theme, "card")
        self._session = session
        self._on_select = on_select
        self._pump = context.pump
        self.source = TextVar(master=self, value=next(iter(sources)))
        self.source_choice = Choice(
            self, context.theme, self.source, {**sources, OTHER_FOLDER: "Another folder…"}, command=on_source
        )
        self.source_choice.pack(fill="x")
        self.search_text = TextVar(master=self)
        self.search = Entry(self, context.theme, self.search_text, placeholder="Search names and captions")
        self.search.pack(fill="x", pady=(GAP, 0))
        self._trace = self.search_text.trace_add(
            "write", lambda *_: self._pump.redraw_soon(self, self._select, at_most_every_seconds=0.1)
        )
        self.filter = TextVar(master=self, value="all")
        self.filter_choice = Choice(
            self, context.theme, self.filter, dict(LIST_FILTERS.items()), command=lambda _name: self._select()
        )
        self.filter_choice.pack(fill="x", pady=(GAP, 0))
        self.count = Text(self, context.theme, role="small", colour="muted", on="card")
        self.count.pack(side="bottom", anchor="w", pady=(4, 0))
        self.list = ThumbnailList(
            self, context.theme, context.pump, line_of=self._line_of, on_choose=on_choose, empty_text=_NOTHING
        )
        self.list.pack(fill="both", expand=True, pady=(GAP, 0))

    @property
    def selection(self) -> tuple[ListFilter, str]:
        """The filter and the search, which decide what is listed."""
        return next(name for name in LIST_FILTERS if name == self.filter.get()), self.search_text.get()

    def refresh(self, *, is_reading: bool = False) -> None:
        """Show the session's list."""
        self.list.empty_text = "Reading the folder…" if is_reading else _NOTHING
        self.list.show(self._session.images, self._session.index)
        if is_reading:
            self.count.set_text("")
        else:
            self.show_count()

    def show_count(self) -> None:
        """Show how many images, captions and masks there are."""
        session = self._session
        total, listed = len(session.set.images), len(session.images)
        with_caption = sum(bool(text.strip()) for text in session.set.texts.values())
        images = f"{listed:,} of {count(total, 'image')}" if listed != total else count(total, "image")
        self.count.set_text(f"{images}, {count(with_caption, 'caption')}, {count(len(session.set.masked), 'mask')}")

    def destroy(self) -> None:
        """Also drop a search that is due, and unsubscribe from the variable."""
        self.search_text.trace_remove("write", self._trace)
        self._pump.forget(self)
        super().destroy()

    def _select(self) -> None:
        self._on_select(*self.selection)

    def _line_of(self, index: int) -> Line:
        session = self._session
        image: Path = session.images[index]
        is_open = image == session.current and session.caption is not None
        text = session.caption.text if is_open and session.caption is not None else session.set.text_of(image)
        mark = ("●" if is_open and session.is_edited else "") + (" mask" if image in session.set.masked else "")
        if not text.strip():
            return Line(image.name, "no caption", "warning", mark.strip())
        return Line(image.name, text, mark=mark.strip())
