"""A grid of thumbnails with their captions in editable texts: as many widgets as are in sight, whatever its length."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ui.forms.context import Context
from ui.widgets.auto_bar import AutoBar
from ui.widgets.panel import Panel, Text
from ui.widgets.photos import Photos
from ui.widgets.textarea import TextArea
from ui.widgets.theme import GAP
from ui.widgets.variables import TextVar

_HEIGHT_PX, _IMAGE_PX, _MIN_WIDTH_PX = 106, 90, 420
_MAX_PHOTOS = 200


class _Cell(Panel):
    """An image, its name and its caption."""

    def __init__(self, master: CaptionRows, context: Context) -> None:
        super().__init__(master.body, context.theme)
        px = context.theme.px
        self.image: Path | None = None
        self.text = ""  # as it was shown last
        self.photo = Text(self, context.theme, on="field", anchor="center")
        self.photo.place(x=0, y=0, width=px(_IMAGE_PX), height=px(_IMAGE_PX))
        self.name = Text(self, context.theme, role="small", colour="muted")
        self.name.place(x=px(_IMAGE_PX + 10), y=0)
        self.variable = TextVar(master=self)
        self.area = TextArea(self, context.theme, self.variable, lines=3, placeholder="no caption")
        self.area.place(
            x=px(_IMAGE_PX + 10), y=px(18), relwidth=1.0, width=-px(_IMAGE_PX + 14), relheight=1.0, height=-px(18)
        )

    @property
    def is_edited(self) -> bool:
        """Whether something was typed."""
        return self.variable.get() != self.text

    def set_text(self, text: str) -> None:
        """Show a caption."""
        self.text = text
        self.variable.set(text)


class CaptionRows(Panel):
    """Call `show` with images. `text_of` returns a caption, `edit` sets one when its text is left.

    Tab and Return go to the next caption, Shift+Tab to the one before, Shift+Return begins another line, Escape
    takes back what was typed.
    """

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        *,
        text_of: Callable[[Path], str],
        edit: Callable[[Path, str], object],
        empty_text: str,
    ) -> None:
        super().__init__(master, context.theme)
        self.images: Sequence[Path] = ()
        self.first = 0  # the number of the first image in sight
        self.cells: list[_Cell] = []
        self._context, self._text_of, self._edit = context, text_of, edit
        self._columns, self._row_px = 1, context.theme.px(_HEIGHT_PX)
        self.photos = Photos(self, context.pump, self.draw_soon, most=_MAX_PHOTOS)
        self.body = Panel(self, context.theme)
        self.body.pack(side="left", fill="both", expand=True)
        self.bar = AutoBar(self, context.theme, self._scroll_to, on="window")
        self.bar.pack(side="right", fill="y")
        self.empty = Text(self.body, context.theme, empty_text, colour="faint")
        self.body.bind("<Configure>", lambda _e: context.pump.redraw_soon((self, "size"), self._arrange), add="+")
        self._bind_wheel(self.body)

    def show(self, images: Sequence[Path]) -> None:
        """Show other images; the place stays where it can."""
        self.commit()
        self.images = images
        self._move(self.first)

    def refresh(self) -> None:
        """Show the captions as they are now; the one that is being typed stays."""
        for cell in self.cells:
            if cell.image is not None and not cell.is_edited:
                cell.set_text(self._caption_text(cell.image))
        self.draw_soon()

    def commit(self) -> None:
        """Set the captions that were typed."""
        for cell in self.cells:
            self._commit(cell)

    def go(self, cell: _Cell, by: int) -> str:
        """Move the focus to the next caption, or to one before; scroll if it is not in sight."""
        number = self.first + self.cells.index(cell) + by
        if 0 <= number < len(self.images):
            self.commit()
            if number < self.first:
                self._move(self.first - self._columns)
            elif number >= self.first + len(self.cells):
                self._move(self.first + self._columns)
            text = self.cells[number - self.first].area.text
            text.focus_set()
            text.mark_set("insert", "end")
        return "break"

    def draw_soon(self) -> None:
        """Draw the images that have arrived."""
        self._context.pump.redraw_soon((self, "images"), self._draw)

    def destroy(self) -> None:
        """Also forget the images and what was to be drawn."""
        self.photos.close()
        for key in ("size", "images"):
            self._context.pump.forget((self, key))
        super().destroy()

    # -- scrolling

    def _scroll_to(self, _how: str, share: float) -> None:
        self._move(round(share * len(self.images) / self._columns) * self._columns)

    def _wheel(self, event: tk.Event[Any]) -> str:
        is_up = event.num == 4 or event.delta > 0
        self._move(self.first + (-self._columns if is_up else self._columns))
        return "break"

    def _bind_wheel(self, widget: tk.Misc) -> None:
        for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
            widget.bind(sequence, self._wheel)

    def _move(self, first: int) -> None:
        """Show the images from a number on; what was typed is set first."""
        self.commit()
        num_rows = -(-len(self.images) // self._columns)
        last = max(0, num_rows - len(self.cells) // self._columns) * self._columns
        self.first = max(0, min(first // self._columns * self._columns, last))
        for number, cell in enumerate(self.cells, start=self.first):
            cell.image = self.images[number] if number < len(self.images) else None
            if cell.image is not None:
                cell.name.set_text(cell.image.name)
                cell.set_text(self._caption_text(cell.image))
        self._place()
        total = max(1, len(self.images))
        self.bar.set(self.first / total, min(1.0, (self.first + len(self.cells)) / total))
        if self.images:
            self.empty.place_forget()
        else:
            self.empty.place(relx=0.5, rely=0.4, anchor="center")
        self._draw()

    # -- drawing

    def _arrange(self) -> None:
        """Make as many cells as fit."""
        px, width, height = self.theme.px, self.body.winfo_width(), self.body.winfo_height()
        self._columns = max(1, width // px(_MIN_WIDTH_PX))
        num_rows = max(1, height // px(_HEIGHT_PX))
        self._row_px, wanted = max(px(_HEIGHT_PX), height // num_rows), self._columns * num_rows
        self.commit()
        while len(self.cells) > wanted:
            self.cells.pop().destroy()
        while len(self.cells) < wanted:
            self.cells.append(self._make_cell())
        self._move(self.first)

    def _make_cell(self) -> _Cell:
        cell = _Cell(self, self._context)
        text = cell.area.text
        for sequence, by in (("<Tab>", 1), ("<Return>", 1), ("<Shift-Tab>", -1), ("<Shift-ISO_Left_Tab>", -1)):
            if sequence != "<Shift-ISO_Left_Tab>" or self.tk.call("tk", "windowingsystem") == "x11":
                text.bind(sequence, lambda _e, by=by: self.go(cell, by))  # type: ignore[misc]
        text.bind("<Shift-Return>", lambda _e: text.insert("insert", "\n") or "break")  # type: ignore[func-returns-value]
        text.bind("<Escape>", lambda _e: self._restore(cell))
        text.bind("<FocusOut>", lambda _e: self._commit(cell), add="+")
        for widget in (cell, cell.photo, cell.name, text):
            self._bind_wheel(widget)
        return cell

    def _place(self) -> None:
        px = self.theme.px
        for number, cell in enumerate(self.cells):
            if cell.image is None:
                cell.place_forget()
                continue
            row, column = divmod(number, self._columns)
            share = 1.0 / self._columns
            cell.place(
                relx=column * share, relwidth=share, width=-px(GAP), y=row * self._row_px, height=self._row_px - px(8)
            )

    def _draw(self) -> None:
        side = self.theme.px(_IMAGE_PX)
        keys = [(cell.image, side) for cell in self.cells if cell.image is not None]
        self.photos.load_only(keys)
        for cell in self.cells:
            if cell.image is not None:
                loaded = self.photos.get((cell.image, side))
                cell.photo.configure(image=loaded or "")
                self.photos.load((cell.image, side))

    def _commit(self, cell: _Cell) -> None:
        if cell.image is not None and cell.is_edited:
            cell.text = cell.variable.get()
            self._edit(cell.image, cell.text + self._text_of(cell.image)[len(self._caption_text(cell.image)) :])

    def _caption_text(self, image: Path) -> str:
        """Return the caption of an image without the line ends at its end, which stay."""
        return self._text_of(image).rstrip("\n")

    def _restore(self, cell: _Cell) -> str | None:
        """Take back what was typed; without that, the key closes the window."""
        if cell.image is None or not cell.is_edited:
            return None
        cell.set_text(self._caption_text(cell.image))
        return "break"
