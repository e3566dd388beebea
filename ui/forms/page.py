"""The page protocol, and the frame of all pages: title, hint, buttons, body."""

from __future__ import annotations

import tkinter as tk
from functools import partial
from itertools import accumulate
from typing import Literal, Protocol, runtime_checkable

from ui.forms.context import Context
from ui.forms.setting_pages import PageSpec
from ui.loop.signal import Signal
from ui.widgets.controls import Button
from ui.widgets.menu import make_menu, open_at
from ui.widgets.panel import Panel, Text
from ui.widgets.scroll import ScrollFrame
from ui.widgets.tabs import Tab
from ui.widgets.theme import GAP, PAD

_MORE_WIDTH = 78
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
        self._box = Panel(self.buttons, context.theme)
        self._box.pack(side="left")
        self._more: Button | None = None  # opens the menu of those that do not fit
        self._names, self._num_shown = spec.actions, 0
        self._actions = [context.buttons.make(self._box, name) for name in spec.actions]
        self._show_actions(len(self._actions))

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
        """Show as many buttons as fit next to the title, the others in a menu; and the hint if they leave room."""
        px, header = self._context.theme.px, self.buttons.master
        others = self.buttons.winfo_reqwidth() - (self._box.winfo_reqwidth() if self._actions else 0)
        widths, more = [px(GAP) + button.winfo_reqwidth() for button in self._actions], px(GAP + _MORE_WIDTH)
        room = header.winfo_width() - self._title.winfo_reqwidth() - others
        number = _num_fitting(widths, room, more)
        self._show_actions(number)
        room -= sum(widths[:number]) + (more if number < len(widths) else 0)  # Tk measures their row only later
        self._stack(is_stacked=room < 0)
        if self._hint.winfo_reqwidth() + px(14 + PAD) > room:
            self._hint.pack_forget()
        elif not self._hint.winfo_manager():
            self._hint.pack(side="left", padx=(px(14), 0), pady=(px(5), 0))

    def _stack(self, *, is_stacked: bool) -> None:
        """Put the buttons below the title: a page may have more of its own than fit next to it."""
        if is_stacked != (self.buttons.pack_info()["side"] == "bottom"):
            top = self._context.theme.px(GAP) if is_stacked else 0
            self.buttons.pack_configure(side="bottom" if is_stacked else "right", anchor="e", pady=(top, 0))

    def _show_actions(self, number: int) -> None:
        """Show the first buttons, and the others in the menu behind them."""
        if number == self._num_shown:
            return
        self._num_shown = number
        if self._more is not None:
            self._more.pack_forget()
        for place, button in enumerate(self._actions):
            if place >= number:
                button.pack_forget()
            elif not button.winfo_manager():
                button.pack(side="left", padx=(GAP, 0))
        if number < len(self._actions):
            if self._more is None:
                self._more = Button(self._box, self._context.theme, "More ▾", self._open_more, width=_MORE_WIDTH)
            self._more.pack(side="left", padx=(GAP, 0))

    def more_menu(self) -> tk.Menu:
        """Return the menu of the actions whose buttons do not fit."""
        menu, actions = make_menu(self, self._context.theme), self._context.actions
        for name in self._names[self._num_shown :]:
            state: Literal["normal", "disabled"] = "normal" if actions[name].is_enabled() else "disabled"
            menu.add_command(label=actions[name].label, command=partial(actions.run, name), state=state)
        return menu

    def _open_more(self) -> None:
        if self._more is not None:
            open_at(self.more_menu(), self._more)

    def add_scroll(self, context: Context) -> ScrollFrame:
        """Return a scroll frame that fills the page below its title."""
        scroll = ScrollFrame(self, context.theme)
        scroll.grid(row=1, column=0, sticky="nsew", padx=(context.theme.px(PAD + 4), context.theme.px(4)))
        scroll.body.columnconfigure(0, weight=1)
        return scroll


def _num_fitting(widths: list[int], room: int, more: int) -> int:
    """Return how many buttons of a row fit into it: all, or those that leave room for one more button."""
    if sum(widths) <= room:
        return len(widths)
    return sum(total + more <= room for total in accumulate(widths))


def page_task(key: str) -> tuple[str, str]:
    """Return the key of the pump's task that builds a page in parts."""
    return "page", key


def form_room(context: Context) -> int:
    """Return the height of a page's form in pixels, as if neither a report nor the card of first steps were open.

    It depends on the window alone, so that the fields stay in place while the user works.
    """
    return context.root.winfo_height() - context.theme.px(_AROUND_FORM)
