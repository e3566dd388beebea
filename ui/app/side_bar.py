"""The side bar: the pages under their headings, marks for invalid entries, and what concerns the whole window."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from ui.app.actions import WINDOW_MENU, show_view
from ui.app.catalogue import PAGES, page_named, page_shortcut
from ui.forms.context import Context
from ui.forms.setting_pages import SIMPLE, PageSpec, page_of
from ui.widgets.controls import Button
from ui.widgets.menu import make_menu, open_at
from ui.widgets.panel import Panel, Text
from ui.widgets.scroll import ScrollFrame
from ui.widgets.tabs import Tab
from ui.widgets.theme import PAD

WIDTH = 192  # a mark fits next to the longest title
_Widget = TypeVar("_Widget", bound=tk.Widget)
_SIMPLE_IF_NEEDED = ("rewards", "embeddings")  # else a config with a reward could not be completed in the simple view
_SPACINGS_PX = (7, 6, 5, 4, 3, 2, 1, 0)  # above and below the text of an entry: the largest with which all entries fit
SIMPLE_VIEW, USUAL_VIEW, ALL_VIEW = "Simple", "Usual", "All"
VIEWS: Mapping[str, str] = {
    SIMPLE_VIEW: "One page with what a LoRA needs. No setting is lost (Ctrl+B).",
    USUAL_VIEW: "All pages, with the settings that people change.",
    ALL_VIEW: "All pages, also with settings that are rarely changed.",
}
SCALES = (0, 100, 125, 150, 175, 200)  # percent; 0: as measured on the screen


class SideBar(Panel):
    """One entry per page; the open one is marked. In a low window the entries move together, and then scroll."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme, "sidebar", width=context.theme.px(WIDTH))
        self.entries: dict[str, NavEntry] = {}
        self.views: dict[str, Tab] = {}
        self._headings: dict[str, Panel | Text] = {}
        self._asked_for: set[str] = set()  # the open page, and those on demand
        self._context = context
        self._spacing_px = _SPACINGS_PX[0]
        self.pack_propagate(False)
        px = context.theme.px
        name = Text(self, context.theme, "Darkroom", role="title", on="sidebar")
        name.pack(anchor="w", padx=px(PAD + 4), pady=(px(10), px(8)))
        find = context.buttons.make(self, "find", on="sidebar")
        find.pack(fill="x", padx=8, pady=(0, 8))
        self._add_footer()
        self.scroll = ScrollFrame(self, context.theme, "sidebar", gutter_px=12)
        self.scroll.pack(fill="both", expand=True, padx=(px(8), px(2)))
        self._add_entries()
        self._footer.lift()  # packed first, but last for Tab, as it looks
        for part in (self.scroll.canvas, self.scroll.body):
            part.bind("<Configure>", lambda _e: context.pump.redraw_soon(self, self._fit), add="+")
        context.navigation.page_wanted.subscribe(self._mark_open)
        context.navigation.full_page_wanted.subscribe(self._announce)
        context.preferences.changed.subscribe(self._follow_preferences)
        context.session.changed.subscribe(lambda: context.pump.redraw_soon("side bar", self._mark_entries))
        context.form.changed.subscribe(lambda: context.pump.redraw_soon("side bar", self._mark_entries))
        context.field_problems.changed.subscribe(lambda: context.pump.redraw_soon("side bar", self._mark_entries))

    def _add_entries(self) -> None:
        context, px = self._context, self._context.theme.px
        for spec in PAGES:
            heading = spec.section_title
            if heading not in self._headings:
                body, theme = self.scroll.body, context.theme
                text = Text(body, theme, heading, role="caption", colour="faint", on="sidebar")
                self._headings[heading] = text if heading else Panel(body, theme, "sidebar", height=1)
                self._headings[heading].pack(anchor="w", padx=px(13), pady=(px(6), px(2)) if heading else 0)
            if spec.entry_key == spec.key:
                self.entries[spec.key] = NavEntry(self.scroll.body, context, spec)
        self._show_needed()

    def _show_needed(self) -> None:
        """Show the entries of the pages that are needed now, in their order, and remove the others."""
        context, before = self._context, dict[str, tk.Widget](self._headings)
        for spec in PAGES:
            entry = self.entries.get(spec.key)
            if entry is None:
                continue  # it shares the entry of another page
            is_needed = context.preferences.now.show_advanced or spec.is_needed(context.form.config)
            is_needed = is_needed and self._is_of_view(spec)
            if spec.key in self._asked_for or (is_needed and not spec.on_demand):
                if not entry.winfo_manager():
                    entry.pack(fill="x", after=before[spec.section_title])
                before[spec.section_title] = entry
            elif entry.winfo_manager() and context.navigation.page != spec.key:
                entry.pack_forget()
            elif entry.winfo_manager():
                before[spec.section_title] = entry

    def _is_of_view(self, spec: PageSpec) -> bool:
        """Return whether the simple view, or the full one, lists a page."""
        if self._context.preferences.now.is_simple:
            if spec.key in _SIMPLE_IF_NEEDED:
                return spec.is_needed(self._context.form.config)
            return not spec.sections or spec.key == "concepts"
        return spec.key != SIMPLE

    def _announce(self, spec: PageSpec) -> None:
        """State that a field was found on a page that the simple view does not list."""
        if not self._is_of_view(spec):
            self._context.notify(f"This is the page {spec.title} of the full view. Train a LoRA leads back.")

    def _add_footer(self) -> None:
        context, px = self._context, self._context.theme.px
        self._footer = box = Panel(self, context.theme, "sidebar")
        box.pack(side="bottom", fill="x", padx=px(PAD), pady=px(8))
        Text(box, context.theme, "View", role="caption", colour="faint", on="sidebar").pack(anchor="w")
        line = Panel(box, context.theme, "sidebar")
        line.pack(fill="x", pady=(0, px(8)))
        for name, tip in VIEWS.items():
            tab = self.views[name] = Tab(
                line, context.theme, name, partial(self._choose_view, name), role="body", on="sidebar"
            )
            tab.pack(side="left", padx=(0, px(14)))
            context.tips.attach(tab, lambda tip=tip: tip)  # type: ignore[misc]
        self._mark_view()
        self.window_button = Button(box, context.theme, "Window  ▾", self.open_window_menu, on="sidebar", anchor="w")
        self.window_button.pack(fill="x", pady=(4, 0))
        context.tips.attach(self.window_button, lambda: "Dark or light, the size of everything, keys, and help")

    def open_window_menu(self) -> None:
        """Open the menu above its button."""
        open_at(self.make_window_menu(), self.window_button, above=True)

    def make_window_menu(self) -> tk.Menu:
        """Return the menu: dark or light, the scale, keys and help."""
        context, now = self._context, self._context.preferences.now
        menu = make_menu(self, context.theme)
        for mode in ("dark", "light"):
            action = context.actions[f"appearance_{mode}"]
            menu.add_command(label=_with_tick(action.label, now.appearance == mode), command=action.run)
        menu.add_separator()
        for percent in SCALES:
            label = f"Scale {percent} %" if percent else "Scale as the screen"
            menu.add_command(
                label=_with_tick(label, now.scale_percent == percent),
                command=lambda percent=percent: context.preferences.change(scale_percent=percent),  # type: ignore[misc]
            )
        menu.add_separator()
        for name in WINDOW_MENU:
            action = context.actions[name]
            menu.add_command(
                label=_with_tick(action.label, is_ticked=False),
                command=action.run,
                state="normal" if action.is_enabled() else "disabled",
            )
        return menu

    def _choose_view(self, name: str) -> None:
        now = self._context.preferences.now
        is_simple = name == SIMPLE_VIEW
        show_view(
            self._context, is_simple=is_simple, show_advanced=now.show_advanced if is_simple else name == ALL_VIEW
        )

    def _mark_view(self) -> None:
        now = self._context.preferences.now
        chosen = SIMPLE_VIEW if now.is_simple else ALL_VIEW if now.show_advanced else USUAL_VIEW
        for name, tab in self.views.items():
            tab.mark(is_open=name == chosen, is_alone=False)

    def _follow_preferences(self) -> None:
        self._mark_view()
        self._show_needed()

    def _fit(self) -> None:
        """Choose the largest spacing with which all entries are visible."""
        visible = [entry for entry in self.entries.values() if entry.winfo_manager()]
        if not visible or self.scroll.canvas.winfo_height() <= 1:
            return
        px = self._context.theme.px
        least_px = self.scroll.body.winfo_reqheight() - 2 * px(self._spacing_px) * len(visible)
        room_px = self.scroll.canvas.winfo_height()
        spacings = (s for s in _SPACINGS_PX if least_px + 2 * px(s) * len(visible) <= room_px)
        spacing_px = next(spacings, _SPACINGS_PX[-1])
        if spacing_px != self._spacing_px:
            self._spacing_px = spacing_px
            for entry in self.entries.values():
                entry.set_spacing(spacing_px)

    def _mark_open(self, page: str) -> None:
        if page == SIMPLE:
            self._context.preferences.change(is_simple=True)  # whoever opened it: the page is that view
        self._asked_for = {key for key in self._asked_for if page_named(key).on_demand} | {page}
        self._show_needed()
        shown = page_named(page).entry_key
        for key, entry in self.entries.items():
            entry.set_open(key == shown)
        if self.entries[shown].winfo_ismapped():
            self.scroll.see(self.entries[shown])

    def _mark_entries(self) -> None:
        self._show_needed()
        form = self._context.form
        paths = [*form.drafts, *self._context.field_problems.errors]
        faulty = {page.key for path in paths if (page := page_of(type(form.config), path)) is not None}
        for key, entry in self.entries.items():
            entry.set_mark("!" if key in faulty else "", "error")
        if self._context.session.is_active:
            self.entries["run"].set_mark("●", "accent")
        self._mark_choices()

    def _mark_choices(self) -> None:
        """Show the page of choices, with their number, while the run waits for them."""
        session = self._context.session
        choices = session.state.choices if session.is_active else None
        if choices is not None:
            self._asked_for.add("choose")
            self._show_needed()
            self.entries["choose"].set_mark(f"{choices.num_open:,}", "accent")


class NavEntry(Panel):
    """A page's entry; opens it on a click, or on Return when focused. Its shortcut appears under the pointer."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        super().__init__(master, context.theme, "sidebar", takefocus=True, cursor="hand2")
        px = context.theme.px
        self._is_open = False
        self._shortcut = page_shortcut(spec)
        self._bar = self._part(Panel(self, context.theme, "sidebar", width=px(3)))
        self._bar.pack(side="left", fill="y", pady=px(3))
        self._label = self._part(
            Text(self, context.theme, spec.entry_title or spec.title, colour="muted", on="sidebar")
        )
        self._label.pack(side="left", padx=px(10), pady=px(_SPACINGS_PX[0]))
        self._mark: Text | None = None  # made when it is shown first, as the shortcut: most entries never need them
        self._key: Text | None = None
        self.bind("<Button-1>", lambda _e: context.navigation.open(spec.key))
        self.bind("<Enter>", self._hover)
        self.bind("<Leave>", self._leave)
        self.bind("<Return>", lambda _e: context.navigation.open(spec.key))
        self.bind("<space>", lambda _e: context.navigation.open(spec.key))
        self.bind("<FocusIn>", self._focus)
        self.bind("<FocusOut>", self._leave)

    def _part(self, widget: _Widget) -> _Widget:
        """Return a widget of the entry that reacts to the pointer as the entry does."""
        widget.bindtags((str(self), *widget.bindtags()))
        return widget

    def set_open(self, is_open: bool) -> None:
        """Mark the entry of the open page."""
        self._is_open = is_open
        self._bar.recolour("accent" if is_open else "sidebar")
        self._colour("field" if is_open else "sidebar")

    def set_mark(self, sign: str, token: str) -> None:
        """Show a mark next to the name: for an invalid entry, or while a run is active."""
        if self._mark is None and sign:
            on = self._label.on
            self._mark = self._part(Text(self, self.theme, colour=token, on=on, role="strong"))
            self._mark.pack(side="right", padx=(0, self.theme.px(10)))
            if self._key is not None:
                self._mark.pack_configure(before=self._key)
        if self._mark is not None:
            self._mark.set_text(sign)
            self._mark.recolour(token)

    def set_spacing(self, spacing_px: int) -> None:
        """Set the distance above and below the title, in design pixels."""
        self._label.pack_configure(pady=self.theme.px(spacing_px))

    def _hover(self, _event: tk.Event[Any]) -> None:
        if self._key is None:
            self._key = self._part(Text(self, self.theme, colour="faint", on=self._label.on, role="caption"))
            self._key.pack(side="right", padx=(0, self.theme.px(10)))
        self._key.set_text(self._shortcut)
        gaps = 3 if self._mark is None else 4
        needed_px = sum(part.winfo_reqwidth() for part in self.pack_slaves()) + gaps * self.theme.px(10)
        if needed_px > self.winfo_width():
            self._key.set_text("")  # next to a long title it would be cut
        if not self._is_open:
            self._colour("card")

    def _focus(self, event: tk.Event[Any]) -> None:
        self._hover(event)
        self._label.recolour("accent")

    def _leave(self, _event: tk.Event[Any]) -> None:
        if self._key is not None:
            self._key.set_text("")
        self._colour("field" if self._is_open else "sidebar")

    def _colour(self, token: str) -> None:
        self.recolour(token)
        if not self._is_open:
            self._bar.recolour(token)
        self._label.recolour("text" if self._is_open else "muted", on=token)
        for text in filter(None, (self._mark, self._key)):
            text.recolour(text.token, on=token)


def _with_tick(label: str, is_ticked: bool) -> str:
    return f"{'✓' if is_ticked else '   '}  {label}"
