"""The side bar: the pages, marks for invalid entries, and the switches."""

from __future__ import annotations

import tkinter as tk
from typing import Any

from ui.context import Context
from ui.pages.catalogue import PAGES, PageSpec, page_of, page_shortcut
from ui.theme import PAD
from ui.widgets.controls import Switch
from ui.widgets.panel import Panel, Text, rule
from ui.widgets.variables import FlagVar

WIDTH = 176


class SideBar(Panel):
    """One entry per page; the open one is marked."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme, "sidebar", width=context.theme.px(WIDTH))
        self.entries: dict[str, NavEntry] = {}
        self._context = context
        self.pack_propagate(False)
        px = context.theme.px
        name = Text(self, context.theme, "Darkroom", role="title", on="sidebar")
        name.pack(anchor="w", padx=px(PAD + 4), pady=(px(18), px(12)))
        find = context.buttons.make(self, "find", on="sidebar")
        find.pack(fill="x", padx=8, pady=(0, 12))
        for spec in PAGES:
            if spec.key == "run":
                rule(self, context.theme).pack(fill="x", padx=px(PAD), pady=px(10))
            entry = NavEntry(self, context, spec)
            if not spec.on_demand:
                entry.pack(fill="x", padx=px(8))
            context.tips.attach(entry, lambda spec=spec: f"{spec.hint} ({page_shortcut(spec)})")  # type: ignore[misc]
            self.entries[spec.key] = entry
        self._add_switches()
        context.navigation.page_wanted.subscribe(self._mark_open)
        context.preferences.changed.subscribe(self._follow_preferences)
        context.session.changed.subscribe(lambda: context.pump.redraw_soon("side bar", self._mark_entries))
        context.form.changed.subscribe(lambda: context.pump.redraw_soon("side bar", self._mark_entries))

    def _add_switches(self) -> None:
        context, px = self._context, self._context.theme.px
        self.show_advanced = FlagVar(master=self, value=context.preferences.now.show_advanced)
        self.is_dark = FlagVar(master=self, value=context.theme.mode == "dark")
        box = Panel(self, context.theme, "sidebar")
        box.pack(side="bottom", fill="x", padx=px(PAD), pady=px(14))
        self.advanced_switch = Switch(
            box,
            context.theme,
            self.show_advanced,
            on="sidebar",
            text="Show advanced",
            command=lambda: context.preferences.change(show_advanced=self.show_advanced.get()),
        )
        self.dark_switch = Switch(
            box,
            context.theme,
            self.is_dark,
            on="sidebar",
            text="Dark",
            command=lambda: context.preferences.change(appearance="dark" if self.is_dark.get() else "light"),
        )
        self.advanced_switch.pack(anchor="w")
        self.dark_switch.pack(anchor="w")
        context.tips.attach(self.advanced_switch, lambda: "Also shows settings that are rarely changed.")

    def _follow_preferences(self) -> None:
        now = self._context.preferences.now
        self.show_advanced.set(now.show_advanced)
        self.is_dark.set(now.appearance == "dark")

    def _mark_open(self, page: str) -> None:
        self._show(page)
        for key, entry in self.entries.items():
            entry.set_open(key == page)

    def _mark_entries(self) -> None:
        form = self._context.form
        pages = [page_of(type(form.config), path) for path in form.drafts]
        faulty = {page.key for page in pages if page is not None}
        for key, entry in self.entries.items():
            entry.set_mark("!" if key in faulty else "", "error")
        if self._context.session.is_active:
            self.entries["run"].set_mark("●", "accent")
        self._mark_choices()

    def _mark_choices(self) -> None:
        """Show the page of choices, with their number, while the run waits for them."""
        session = self._context.session
        wanted = session.state.choices if session.is_active else None
        if wanted is not None:
            self._show("choose")
            self.entries["choose"].set_mark(f"{wanted.num_open:,}", "accent")

    def _show(self, page: str) -> None:
        """Add the entry of a page that is shown on demand; it stays."""
        if not self.entries[page].winfo_manager():
            self.entries[page].pack(fill="x", padx=self._context.theme.px(8), after=self.entries["run"])


class NavEntry(Panel):
    """A page's entry; opens it on a click, or on Return when focused."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        super().__init__(master, context.theme, "sidebar", takefocus=True, cursor="hand2")
        px = context.theme.px
        self._is_open = False
        self._bar = Panel(self, context.theme, "sidebar", width=px(3))
        self._bar.pack(side="left", fill="y", pady=px(6))
        self._label = Text(self, context.theme, spec.title, colour="muted", on="sidebar")
        self._label.pack(side="left", padx=px(10), pady=px(7))
        self._dot = Text(self, context.theme, "", colour="error", on="sidebar", role="strong")
        self._dot.pack(side="right", padx=px(10))
        for widget in (self, self._bar, self._label, self._dot):
            widget.bind("<Button-1>", lambda _e: context.navigation.open(spec.key), add="+")
            widget.bind("<Enter>", self._hover, add="+")
            widget.bind("<Leave>", self._leave, add="+")
        self.bind("<Return>", lambda _e: context.navigation.open(spec.key))
        self.bind("<space>", lambda _e: context.navigation.open(spec.key))
        self.bind("<FocusIn>", self._hover, add="+")
        self.bind("<FocusOut>", self._leave, add="+")

    def set_open(self, is_open: bool) -> None:
        """Mark the entry of the open page."""
        self._is_open = is_open
        self._bar.recolour("accent" if is_open else "sidebar")
        self._colour("field" if is_open else "sidebar")

    def set_mark(self, sign: str, token: str) -> None:
        """Show a mark beside the name: for an invalid entry, or while a run is active."""
        self._dot.set_text(sign)
        self._dot.recolour(token)

    def _hover(self, _event: tk.Event[Any]) -> None:
        if not self._is_open:
            self._colour("card")

    def _leave(self, _event: tk.Event[Any]) -> None:
        if not self._is_open:
            self._colour("sidebar")

    def _colour(self, token: str) -> None:
        self.recolour(token)
        if not self._is_open:
            self._bar.recolour(token)
        self._label.recolour("text" if self._is_open else "muted", on=token)
        self._dot.recolour(self._dot.token, on=token)
