"""Tabs as the heading of a card: several views share its place. With a single view it looks like a plain heading."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import Any

from ui.widgets.card import Card
from ui.widgets.panel import Flow, Panel, Text
from ui.widgets.theme import GAP, PAD, Theme


class TabbedCard(Card):
    """A card with several views in one place; add widgets to the panels that `add` returns.

    A view appears among the tabs once it is offered, in the order in which the views were added. The newest one offered
    is shown, until the user has chosen. The choice is kept in `kept`. In a narrow card the tabs take several lines.
    """

    def __init__(self, master: tk.Misc, theme: Theme, *, kept: dict[str, str] | None = None) -> None:
        super().__init__(master, theme)
        self.views: dict[str, Panel] = {}
        self.tabs: dict[str, Tab] = {}
        self.shown = ""
        self._has_chosen = False
        self._kept = {} if kept is None else kept
        self._offered: list[str] = []
        self.bar = Flow(self, theme, gap_px=GAP * 2)
        self.bar.lower(self.body)  # Tab reaches it first
        self.pack_bar()
        self.body.pack_configure(pady=(theme.px(2), theme.px(10)))
        self.body.columnconfigure(0, weight=1)
        self.body.rowconfigure(0, weight=1)

    def pack_bar(self) -> None:
        """Show the tabs."""
        px = self.bar.theme.px
        self.bar.pack(fill="x", before=self.body, padx=px(PAD), pady=(px(12), px(4)))

    def is_offered(self, title: str) -> bool:
        """Return whether a view is among the tabs."""
        return title in self._offered

    def add(self, title: str, *, is_offered: bool = False) -> Panel:
        """Add a view and return its panel."""
        view = Panel(self.body, self.bar.theme, "card")
        view.grid(row=0, column=0, sticky="nsew")
        self.views[title] = view
        self.tabs[title] = Tab(self.bar, self.bar.theme, title, partial(self.choose, title))
        self.tabs[title].bind("<Configure>", self._follow_size, add="+")  # its size may come after the bar's
        if is_offered:
            self.offer(title)
        else:
            view.grid_remove()
        return view

    def _follow_size(self, _event: tk.Event[Any]) -> None:
        if all(tab.winfo_exists() for tab in self.tabs.values()):  # not while the window is destroyed
            self.bar.lay_out()

    def choose(self, title: str) -> None:
        """Show a view that the user has chosen."""
        self._has_chosen = True
        self._kept["chosen"] = title
        self.show(title)

    def offer(self, title: str, *, is_offered: bool = True, is_shown: bool = True) -> None:
        """Add a view to the tabs, and with `is_shown` show it unless the user has chosen another; or remove it."""
        if is_offered == self.is_offered(title):
            return
        if is_offered:
            self._offered = [other for other in self.views if other == title or other in self._offered]
        else:
            self._offered.remove(title)
        place = self._offered.index(title) if is_offered else None
        self.bar.show(self.tabs[title], is_shown=is_offered, at=place)
        if not is_offered and self.shown == title:
            self._has_chosen = False
            self.show(next(t for t in self.tabs if self.is_offered(t)))
        elif is_offered and self._kept.get("chosen") == title:
            self.choose(title)
        elif is_offered and is_shown and not self._has_chosen:
            self.show(title)
        self._mark()

    def show(self, title: str) -> None:
        """Show a view."""
        if self.shown and self.shown != title:
            self.views[self.shown].grid_remove()
        self.shown = title
        self.views[title].grid()
        self._mark()

    def _mark(self) -> None:
        for title, tab in self.tabs.items():
            tab.mark(is_open=title == self.shown, is_alone=len(self._offered) == 1)


class Tab(Panel):
    """The title of a view; a click, Return or Space shows it."""

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        title: str,
        press: Callable[[], object],
        *,
        role: str = "heading",
        on: str = "card",
    ) -> None:
        super().__init__(master, theme, on, takefocus=True, cursor="hand2")
        self._label = Text(self, theme, title, role=role, on=on)
        self._label.pack()
        self._line = Panel(self, theme, on, height=theme.px(2))
        self._line.pack(fill="x", pady=(theme.px(2), 0))
        for widget in (self, self._label):
            widget.bind("<Button-1>", lambda _e: press())
        for key in ("<Return>", "<space>"):
            self.bind(key, lambda _e: press())
        self.bind("<FocusIn>", lambda _e: self._label.recolour("accent"))
        self.bind("<FocusOut>", lambda _e: self._colour())
        self._is_open = False

    def mark(self, *, is_open: bool, is_alone: bool) -> None:
        """Mark the tab of the view that is shown; the only tab is a heading."""
        self._is_open = is_open
        self.configure(cursor="" if is_alone else "hand2", takefocus=not is_alone)
        self._line.recolour("accent" if is_open and not is_alone else self.token)
        self._colour()

    def _colour(self) -> None:
        self._label.recolour("text" if self._is_open else "muted")
