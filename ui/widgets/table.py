"""A dense list: ttk's tree as a flat table."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from tkinter import ttk
from typing import Any

from PIL import Image, ImageDraw, ImageTk

from ui.widgets.auto_bar import AutoBar
from ui.widgets.fitted_text import FittedTexts
from ui.widgets.panel import Panel, WrappedText, call_later, focused_widget
from ui.widgets.theme import Theme
from ui.widgets.window import style_ttk

_MIN_WIDTH = 60
_CELL_PADDING_PX = 12  # between the text of a cell and its edges


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its name in code, heading, width and alignment.

    A stretched one takes the rest of the width, at least `least_px`; an optional one is hidden where others would be
    clipped; the texts of a fitted one are cut after a word where they are wider than it.
    """

    name: str
    heading: str
    width_px: int
    anchor: str = "w"
    is_stretched: bool = False
    is_optional: bool = False
    is_fitted: bool = False
    least_px: int = _MIN_WIDTH


def fitting_columns(columns: Sequence[Column], width_px: float) -> tuple[Column, ...]:
    """Return the columns that fit into a width in design pixels: without as many optional ones, from the right."""
    kept = list(columns)
    for column in reversed(columns):
        if sum(min(c.least_px, c.width_px) if c.is_stretched else c.width_px for c in kept) <= width_px:
            break
        if column.is_optional:
            kept.remove(column)
    return tuple(kept)


class Table(Panel):
    """Rows by number. Invisible rows cost nothing."""

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        columns: Sequence[Column],
        *,
        on: str = "card",
        num_rows: int = 5,
        empty_text: str = "",
    ) -> None:
        """`empty_text` is shown while there are no rows."""
        super().__init__(master, theme, on)
        style_ttk(self, theme)
        first, *others = columns
        self.tree = ttk.Treeview(
            self,
            columns=[c.name for c in others],
            selectmode="extended",
            show="tree headings",
            height=num_rows,
        )
        self._add_column("#0", first)
        for column in others:
            self._add_column(column.name, column)
        self._columns = tuple(columns)
        if any(column.is_optional or column.is_stretched for column in columns):
            self.tree.bind("<Configure>", lambda event: self._fit(event.width), add="+")
        self._fitted = [column.name for column in columns if column.is_fitted]
        self._texts = FittedTexts(self, theme)
        self._rows: list[tuple[str, Sequence[str], str]] = []  # with whole texts, of a table with fitted columns
        if self._fitted:
            self.tree.bind("<Configure>", lambda _e: call_later(self, "idle", self._refit), add="+")
        self._images: dict[int, Any] = {}
        bar = AutoBar(self, theme, self.tree.yview, on=on)
        self.tree.configure(yscrollcommand=bar.set)
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        self.tree.grid(row=0, column=0, sticky="nsew")
        self.configure(highlightthickness=1)
        self._empty = WrappedText(self, theme, empty_text, colour="muted", on=on, anchor="center", justify="center")
        self.tree.bind("<FocusIn>", lambda _e: self._show_ring(has_focus=True), add="+")
        self.tree.bind("<FocusOut>", lambda _e: self._show_ring(has_focus=False), add="+")
        for key in ("<Down>", "<Up>"):
            self.tree.bind(key, lambda _e: self._select_first(), add="+")
        bar.grid(row=0, column=1, sticky="ns")
        self.apply_theme()
        self._show_empty(is_empty=True)

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        super().apply_theme()
        if hasattr(self, "tree"):
            self._show_ring(has_focus=focused_widget(self) is self.tree)
            style_ttk(self, self.theme)
            for tag in ("muted", "error", "warning", "faint"):
                self.tree.tag_configure(tag, foreground=self.theme.colour(tag))

    def set_rows(self, rows: Sequence[tuple[str, Sequence[str], str]]) -> None:
        """Show rows: the first column's text, the others', and a tag for the colour ("" for the default).

        Existing rows are changed in place, so that the selection stays.
        """
        present = len(self.tree.get_children())
        self._rows = list(rows) if self._fitted else []
        for index, (text, values, tag) in enumerate(rows):
            options = {**self._fit_texts(text, values), "tags": (tag,) if tag else ()}
            if index < present:
                self.tree.item(str(index), **options)
            else:
                self.tree.insert("", "end", iid=str(index), **options)
        for index in range(len(rows), present):
            self.tree.delete(str(index))
            self._images.pop(index, None)
        if bool(rows) != bool(present):
            self._show_empty(is_empty=not rows)

    def set_image(self, index: int, image: Any) -> None:
        """Show an image in the first column; None removes it."""
        if self.tree.exists(str(index)):
            self._images[index] = image  # Tk keeps no reference itself
            self.tree.item(str(index), image=image or "")

    @property
    def selected(self) -> list[int]:
        """The numbers of the selected rows, in their order."""
        return sorted(int(iid) for iid in self.tree.selection())

    def select(self, indices: Sequence[int]) -> None:
        """Select rows and scroll to the first of them."""
        known = [str(i) for i in indices if self.tree.exists(str(i))]
        self.tree.selection_set(known)
        if known:
            self.tree.focus(known[0])
            self.tree.see(known[0])

    def on_events(self, handlers: Mapping[str, Callable[[], object]]) -> None:
        """Bind keys and clicks of the list, by Tk sequence."""
        for sequence, handler in handlers.items():
            self._bind(sequence, handler)

    def row_and_column_at(self, event: tk.Event[Any]) -> tuple[int, str] | None:
        """Return the row number and column name under a mouse event; None outside the rows."""
        iid = self.tree.identify_row(event.y)
        if not iid:
            return None
        column = self.tree.identify_column(event.x)
        return int(iid), column if column == "#0" else str(self.tree.column(column, "id"))

    def explain_empty(self, text: str) -> None:
        """Set the text that is shown while there are no rows."""
        self._empty.set_text(text)
        self._show_empty(is_empty=not self.tree.get_children())

    def _show_empty(self, *, is_empty: bool) -> None:
        """Show the text of a table without rows, whose ring would surround nothing, or take it away."""
        if is_empty and self._empty.cget("text"):
            self._empty.place(relx=0.5, rely=0.5, relwidth=0.8, anchor="center")
        else:
            self._empty.place_forget()
        self._show_ring(has_focus=focused_widget(self) is self.tree)

    def _show_ring(self, *, has_focus: bool) -> None:
        colour = self.theme.colour("accent" if has_focus and self.tree.get_children() else self.token)
        self.configure(highlightbackground=colour, highlightcolor=colour)  # Tk's own is black

    def _select_first(self) -> str | None:
        """Select the first row where none is: Tk's own keys need one to begin at."""
        if self.tree.selection() or not self.tree.get_children():
            return None
        self.select([0])
        return "break"

    def _bind(self, sequence: str, handler: Callable[[], object]) -> None:
        def called(_event: object) -> str | None:
            handler()
            # Tk's own binding comes next: it would report a list that is gone in a dialog of its own, and it takes an
            # arrow with Alt for the arrow alone, which selects another row.
            return None if self.tree.winfo_exists() and not sequence.startswith("<Alt-") else "break"

        self.tree.bind(sequence, called, add="+")

    def _add_column(self, name: str, column: Column) -> None:
        anchor: Any = column.anchor
        self.tree.heading(name, text=column.heading, anchor=anchor)
        self.tree.column(
            name,
            width=self.theme.px(column.width_px),
            minwidth=self.theme.px(min(_MIN_WIDTH, column.width_px)),
            anchor=anchor,
            stretch=column.is_stretched,
        )

    def _fit_texts(self, text: str, values: Sequence[str]) -> dict[str, Any]:
        """Return the texts of a row as options of Tk's; in fitted columns they are cut after a word."""
        texts = dict(zip(("#0", *self.tree["columns"]), (text, *values), strict=True))
        for name in self._fitted:
            room = int(self.tree.column(name, "width")) - self.theme.px(_CELL_PADDING_PX)
            indent = " " * (len(texts[name]) - len(texts[name].lstrip()))
            texts[name] = indent + self._texts.fit(texts[name], "body", room, keeps_words=True)
        return {"text": texts.pop("#0"), "values": list(texts.values())}

    def _refit(self) -> None:
        """Cut the texts of fitted columns anew: the table has another width."""
        for index, (text, values, _) in enumerate(self._rows):
            self.tree.item(str(index), **self._fit_texts(text, values))

    def _fit(self, width: int) -> None:
        """Show the columns that fit; the stretched ones share the rest. Tk would clip the last ones instead."""
        shown = fitting_columns(self._columns, width / self.theme.scale)
        names = [column.name for column in shown if column.name != "#0"]
        if names != [str(name) for name in self.tree["displaycolumns"]]:
            self.tree.configure(displaycolumns=names)
        rest = width - sum(self.theme.px(column.width_px) for column in shown if not column.is_stretched)
        whole = sum(column.width_px for column in shown if column.is_stretched)
        for column in shown:
            room = rest * column.width_px // whole if column.is_stretched else self.theme.px(column.width_px)
            self.tree.column(column.name, width=max(room, self.theme.px(min(_MIN_WIDTH, column.width_px))))


WIDTH, HEIGHT = 34, 18  # design pixels, with the distance to the text
_TRACK, _INSET = 28, 3
_FINER = 4  # drawn larger and reduced, for smooth edges


class SwitchImages:
    """The images of a switch that is on and of one that is off, in the colours of the current mode."""

    def __init__(self, master: tk.Misc, theme: Theme) -> None:
        self._master = master
        self._theme = theme
        self._drawn: dict[tuple[str, bool], ImageTk.PhotoImage] = {}

    def of(self, *, is_on: bool) -> ImageTk.PhotoImage:
        """Return the image of a state."""
        key = (self._theme.mode, is_on)
        if key not in self._drawn:
            self._drawn[key] = ImageTk.PhotoImage(draw_switch(self._theme, is_on=is_on), master=self._master)
        return self._drawn[key]


def draw_switch(theme: Theme, *, is_on: bool) -> Image.Image:
    """Return a switch on a transparent ground."""
    size = (theme.px(WIDTH), theme.px(HEIGHT))
    image = Image.new("RGBA", (size[0] * _FINER, size[1] * _FINER))
    draw = ImageDraw.Draw(image)
    unit = theme.scale * _FINER
    right, bottom = _TRACK * unit, image.height - unit
    draw.rounded_rectangle((0, unit, right, bottom), radius=bottom, fill=theme.colour("accent" if is_on else "switch"))
    side = bottom - unit - 2 * _INSET * unit
    left = right - side - _INSET * unit if is_on else _INSET * unit
    top = unit + _INSET * unit
    draw.ellipse((left, top, left + side, top + side), fill=theme.colour("switch_knob"))
    return image.resize(size, Image.Resampling.LANCZOS)
