"""The page protocol, and the frame of all pages: title, hint, buttons, body."""

from __future__ import annotations

import tkinter as tk
from functools import partial
from typing import Protocol, runtime_checkable

from ui.forms.context import Context
from ui.forms.setting_pages import PageSpec
from ui.loop.signal import Signal
from ui.widgets.panel import Panel, Text
from ui.widgets.scroll import ScrollFrame
from ui.widgets.tabs import Tab
from ui.widgets.theme import GAP, PAD

_AROUND_FORM = 66 + 62 + 66  # the top bar, the page's title, the bottom bar


class Page(Protocol):
    """A page of the window; built when first opened, then hidden and shown."""

    frame: PageFrame

    def on_show(self) -> None:
        """Called when the page becomes visible."""


@runtime_checkable
class PageWithFields(Page, Protocol):
    """A page that shows settings of the config."""

    def show_field(self, path: str) -> bool:
        """Show a field; return whether the page has it."""


class PageFrame(Panel):
    """Title and hint at the top left, buttons at the top right, the page's content below.

    `hidden` is emitted when the page is hidden; until then `is_shown`.
    """

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        super().__init__(master, context.theme, "window")
        self.is_shown = False
        self.hidden: Signal[[]] = Signal()
        px = context.theme.px
        self.columnconfigure(0, weight=1)
        self.rowconfigure(1, weight=1)
        header = Panel(self, context.theme)
        header.grid(row=0, column=0, sticky="ew", padx=px(PAD + 4), pady=(px(PAD), px(12)))
        self.buttons = Panel(header, context.theme)
        self.buttons.pack(side="right")
        self._title = (
            self._tabs(header, context, spec) if spec.tabs else Text(header, context.theme, spec.title, role="title")
        )
        self._title.pack(side="left")
        self._hint = Text(header, context.theme, spec.hint, colour="muted")
        self._hint.pack(side="left", padx=(px(14), 0), pady=(px(5), 0))
        self._context = context
        for part in (header, self.buttons):
            part.bind("<Configure>", lambda _e: context.pump.redraw_soon((self, "hint"), self._fit), add="+")
        box = Panel(self.buttons, context.theme)
        box.pack(side="left")
        self._actions = [context.buttons.make(box, name) for name in spec.actions]
        self._lines: list[int] = []
        self._arrange([0] * len(self._actions))

    @staticmethod
    def _tabs(header: Panel, context: Context, spec: PageSpec) -> Panel:
        """Return the titles of the pages that share an entry of the side bar; a click opens one."""
        box = Panel(header, context.theme)
        for key, title in spec.tabs:
            tab = Tab(box, context.theme, title, partial(context.navigation.open, key), role="title", on="window")
            tab.mark(is_open=key == spec.key, is_alone=False)
            tab.pack(side="left", padx=(0, context.theme.px(PAD)))
        return box

    def destroy(self) -> None:
        """Also forget the pending redraw."""
        self._context.pump.forget((self, "hint"))
        super().destroy()

    def _fit(self) -> None:
        """Continue the buttons on another line if they do not fit, and show the hint if they leave room."""
        px, header = self._context.theme.px, self.buttons.master
        others = self.buttons.winfo_reqwidth() - self._actions[0].master.winfo_reqwidth() if self._actions else 0
        widths = [px(GAP) + button.winfo_reqwidth() for button in self._actions]
        self._arrange(_lines(widths, header.winfo_width() - self._title.winfo_reqwidth() - others))
        room = header.winfo_width() - self.buttons.winfo_reqwidth() - self._title.winfo_reqwidth()
        if self._hint.winfo_reqwidth() + px(14 + PAD) > room:
            self._hint.pack_forget()
        elif not self._hint.winfo_manager():
            self._hint.pack(side="left", padx=(px(14), 0), pady=(px(5), 0))

    def _arrange(self, lines: list[int]) -> None:
        """Put each button on its line."""
        if lines != self._lines:
            self._lines = lines
            for number, (button, line) in enumerate(zip(self._actions, lines, strict=True)):
                top = self._context.theme.px(GAP) if line else 0
                # tk's own: customtkinter would scale distances in pixels
                tk.Grid.grid_configure(button, row=line, column=number - lines.index(line), sticky="ew")
                tk.Grid.grid_configure(button, padx=(self._context.theme.px(GAP), 0), pady=(top, 0))

    def add_scroll(self, context: Context) -> ScrollFrame:
        """Return a scroll frame that fills the page below its title."""
        scroll = ScrollFrame(self, context.theme)
        scroll.grid(row=1, column=0, sticky="nsew", padx=(context.theme.px(PAD + 4), context.theme.px(4)))
        scroll.body.columnconfigure(0, weight=1)
        return scroll


def _lines(widths: list[int], room: int) -> list[int]:
    """Return the line of each button of a row that continues on the next line if it is too narrow."""
    lines, used_px = list[int](), 0
    for width in widths:
        is_next = bool(lines) and used_px + width > room
        lines.append((lines[-1] if lines else 0) + is_next)
        used_px = width if is_next else used_px + width
    return lines


def page_task(key: str) -> tuple[str, str]:
    """Return the key of the pump's task that builds a page in parts."""
    return "page", key


def form_room(context: Context) -> int:
    """Return the height of a page's form in pixels, as if neither a report nor the card of first steps were open.

    It depends on the window alone, so that the fields stay in place while the user works.
    """
    return context.root.winfo_height() - context.theme.px(_AROUND_FORM)
