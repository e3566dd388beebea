"""The bars and the menu of the Concepts page: filter, scan, undo."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from ui.features.concepts.cards import ANY_KIND, STATES, CardFilter, State
from ui.features.concepts.scanning import Scans
from ui.forms.context import Context
from ui.widgets.controls import Button, Choice
from ui.widgets.entry import Entry
from ui.widgets.menu import make_menu
from ui.widgets.panel import Panel, Text
from ui.widgets.progress import ThinBar
from ui.widgets.theme import GAP, Theme
from ui.widgets.variables import TextVar, keep

_SEARCH_SECONDS = 0.15
_ALL_KINDS = "All types"


class EnableVisible(Protocol):
    """Enables or disables all concepts that are shown."""

    def __call__(self, *, to: bool) -> object:
        """Enable or disable them."""


class FilterBar(Panel):
    """Search, type and state; and what applies to all cards that they leave."""

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        kinds: Mapping[str, str],
        changed: Callable[[], None],
        enable_visible: EnableVisible,
    ) -> None:
        super().__init__(master, context.theme)
        self.kinds = dict(kinds)
        self.text = TextVar(master=self)
        self.kind = TextVar(master=self, value=ANY_KIND)
        self.state = TextVar(master=self, value="all")
        view_state = context.view_state.of("concepts", dict[str, str])
        keep(self.text, view_state, "text")
        keep(self.kind, view_state, "kind")
        keep(self.state, view_state, "state")
        theme = context.theme
        self.entry = Entry(self, theme, self.text, on="window", width=190, placeholder="Search concepts")
        kind_choices = {ANY_KIND: _ALL_KINDS, **self.kinds}
        self.kind_choice = Choice(self, theme, self.kind, kind_choices, on="window", width=150)
        self.state_choice = Choice(self, theme, self.state, dict[str, str](STATES.items()), on="window", width=140)
        self.clear_button = Button(self, theme, "Clear", self.clear)
        self._filters: tuple[tk.Widget, ...] = (self.entry, self.kind_choice, self.state_choice, self.clear_button)
        self._shown = Panel(self, theme)  # what applies to the concepts that are shown
        self.count = Text(self._shown, theme, role="small", colour="muted")
        self.enable = Button(self._shown, theme, "Enable shown", lambda: enable_visible(to=True), style="ghost")
        self.disable = Button(self._shown, theme, "Disable shown", lambda: enable_visible(to=False), style="ghost")
        rows: tuple[tuple[tk.Widget, ...], ...] = (self._filters, (self.count, self.enable, self.disable))
        for row in rows:
            for column, widget in enumerate(row):
                tk.Grid.grid_configure(widget, row=0, column=column, sticky="ew", padx=(0, theme.px(GAP)))
        self.columnconfigure(0, weight=1)  # the entry is cut where there is little room, not the labels
        self.columnconfigure(len(self._filters), weight=1000)
        self._shown.columnconfigure(0, weight=1)
        self._px = theme.px
        self._make_room()
        self.bind("<Configure>", lambda _e: self._make_room())
        for variable in (self.text, self.kind, self.state):
            variable.trace_add(
                "write",
                lambda *_: context.pump.redraw_soon(self, changed, at_most_every_seconds=_SEARCH_SECONDS),
            )
        self.entry.tk_entry.bind("<Escape>", lambda _e: self.clear())

    @property
    def filter(self) -> CardFilter:
        """The filter that is entered."""
        return CardFilter(self.text.get().strip(), self.kind.get(), cast(State, self.state.get()))

    def clear(self) -> None:
        """Show all concepts."""
        for variable, value in ((self.text, ""), (self.kind, ANY_KIND), (self.state, "all")):
            if variable.get() != value:
                variable.set(value)

    def show_count(self, num_shown: int, num_all: int, num_disabled: int) -> None:
        """Show how many concepts the filters leave, and how many are disabled."""
        is_open = self.filter.is_open
        disabled = f"{num_disabled:,} disabled" if num_disabled else ""
        self.count.set_text(disabled if is_open else f"{num_shown:,} of {num_all:,} shown")
        needed = {self.clear_button: not is_open, self.enable: num_all > 1, self.disable: num_all > 1}
        for button, is_needed in needed.items():
            if is_needed:
                tk.Grid.grid_configure(button)  # at its place
            else:
                button.grid_remove()
        self._make_room()

    def _make_room(self) -> None:
        """Put what applies to the shown concepts into a second line where one is too narrow."""
        in_line = [widget for widget in (*self._filters, self._shown) if widget.winfo_manager()]
        needed = sum(widget.winfo_reqwidth() + self._px(GAP) for widget in in_line)
        if needed > self.winfo_width() > 1:
            self._shown.grid(row=1, column=0, columnspan=len(self._filters) + 1, sticky="ew", pady=(self._px(GAP), 0))
        else:
            self._shown.grid(row=0, column=len(self._filters), columnspan=1, sticky="ew", pady=0)


class ScanBar(Panel):
    """The progress of the scans with a button to stop them; after a stop, one to scan again."""

    def __init__(self, master: tk.Misc, context: Context, scans: Scans, scan_again: Callable[[], None]) -> None:
        super().__init__(master, context.theme)
        self._scans, self._scan_again = scans, scan_again
        self.bar = ThinBar(self, context.theme, on="window", width_px=160)
        self.text = Text(self, context.theme, role="small", colour="muted")
        self.button = Button(self, context.theme, "Stop", self._press)
        self.text.pack(side="left")
        self.button.pack(side="right")
        self.bar.pack(side="right", padx=(GAP, GAP))

    def show_progress(self) -> None:
        """Show the scan that is running; hide the bar once all is done."""
        progress = self._scans.progress
        if progress is None and not self._scans.is_stopped:
            self.grid_remove()
            return
        self.grid()
        if progress is None:
            self.text.set_text("Scanning was stopped; some folders were not looked at.")
            self.bar.set(0)
            self.button.configure(text="Scan again")
            return
        others = progress.num_left - 1
        left = f"; {others:,} more {'folder' if others == 1 else 'folders'}" if others > 0 else ""
        done = f"{progress.done:,} of {progress.total:,} images" if progress.total else "looking for images"
        self.text.set_text(f"Scanning {progress.folder}: {done}{left}")
        self.bar.set(progress.done / progress.total if progress.total else 0)
        self.button.configure(text="Stop")

    def _press(self) -> None:
        if self._scans.progress is None:
            self._scan_again()
        else:
            self._scans.stop()


class UndoBar(Panel):
    """Offers to undo the last removal, until something else of the list changes."""

    def __init__(self, master: tk.Misc, context: Context, path: str) -> None:
        super().__init__(master, context.theme, "card")
        self._form, self._path = context.form, path
        self._list_value: object = None
        self.text = Text(self, context.theme, on="card")
        self.text.pack(side="left", padx=context.theme.px(12), pady=context.theme.px(6))
        self.button = Button(self, context.theme, "Undo", self.undo, on="card")
        self.button.pack(side="right", padx=context.theme.px(6), pady=context.theme.px(4))
        context.tips.attach(self.button, lambda: "Undo the removal (Ctrl+Z)")
        context.form.watch(path, self._follow)

    def offer(self, text: str) -> None:
        """Offer to undo what was just done."""
        self._list_value = self._form.value(self._path)
        self.text.set_text(text)
        self.grid()

    def undo(self) -> None:
        """Undo it."""
        self._form.undo()

    def _follow(self) -> None:
        if self._form.value(self._path) is not self._list_value:
            self.grid_remove()


_BEFORE_A_LINE = ("Open folder", "Disable")


def concepts_menu(master: tk.Misc, theme: Theme, commands: Mapping[str, Callable[[], object]]) -> tk.Menu:
    """Return a menu of commands by label."""
    menu = make_menu(master, theme)
    for label, command in commands.items():
        menu.add_command(label=label, command=command)
        if label in _BEFORE_A_LINE:
            menu.add_separator()
    return menu
