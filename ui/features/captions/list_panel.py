"""The list of images at the left: where they are from, a search, what is listed, and the images themselves."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from pathlib import Path

from modules.system.problem import count
from ui.features.captions.image_set import SHOWN, Shown
from ui.features.captions.session import EditorSession
from ui.forms.context import Context
from ui.widgets.controls import Choice
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text
from ui.widgets.theme import GAP
from ui.widgets.thumbnail_list import Line, ThumbnailList
from ui.widgets.variables import TextVar

OTHER_FOLDER = "other"
_NOTHING = "No images are listed."


class ListPanel(Panel):
    """Calls `on_source(name)`, `on_select(shown, words)` and `on_choose(index)`."""

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        session: EditorSession,
        *,
        sources: Mapping[str, str],
        on_source: Callable[[str], object],
        on_select: Callable[[Shown, str], object],
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
        self.words = TextVar(master=self)
        self.search = Entry(self, context.theme, self.words, placeholder="Search names and captions")
        self.search.pack(fill="x", pady=(GAP, 0))
        self._trace = self.words.trace_add(
            "write", lambda *_: self._pump.redraw_soon(self, self._select, at_most_every_seconds=0.1)
        )
        self.shown = TextVar(master=self, value="all")
        self.shown_choice = Choice(
            self, context.theme, self.shown, dict(SHOWN.items()), command=lambda _name: self._select()
        )
        self.shown_choice.pack(fill="x", pady=(GAP, 0))
        self.count = Text(self, context.theme, role="small", colour="muted", on="card")
        self.count.pack(side="bottom", anchor="w", pady=(4, 0))
        self.list = ThumbnailList(
            self, context.theme, context.pump, line_of=self._line_of, on_choose=on_choose, empty_text=_NOTHING
        )
        self.list.pack(fill="both", expand=True, pady=(GAP, 0))

    @property
    def selection(self) -> tuple[Shown, str]:
        """The choice and the words of the search, which decide what is listed."""
        return next(name for name in SHOWN if name == self.shown.get()), self.words.get()

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
        words = f"{listed:,} of {count(total, 'image')}" if listed != total else count(total, "image")
        self.count.set_text(f"{words}, {count(with_caption, 'caption')}, {count(len(session.set.masked), 'mask')}")

    def destroy(self) -> None:
        """Also drop a search that is due, and unsubscribe from the variable."""
        self.words.trace_remove("write", self._trace)
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
