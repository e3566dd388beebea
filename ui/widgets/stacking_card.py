"""A tabbed card that shows its views one below the other where it is high enough."""

from __future__ import annotations

import tkinter as tk

from ui.loop.pump import Pump
from ui.widgets.panel import Panel, Text
from ui.widgets.tabs import TabbedCard
from ui.widgets.theme import Theme


class StackingCard(TabbedCard):
    """Add views with `add`. From a height of `stacks_from_px` on all offered ones are shown, each below its title.

    `weights` are their shares of the height, in the order in which they are added.
    """

    def __init__(
        self, master: tk.Misc, theme: Theme, pump: Pump, *, stacks_from_px: int, weights: tuple[int, ...]
    ) -> None:
        super().__init__(master, theme)
        self.is_stacked = False
        self._pump = pump
        self._stacks_from_px = theme.px(stacks_from_px)
        self._weights = weights
        self._headings: dict[str, Text] = {}
        self.body.rowconfigure(0, weight=0)
        # Not at once: Tk calls this while it places children, when none of them may be moved.
        self.body.bind("<Configure>", lambda _e: pump.redraw_soon((self, "height"), self._fit), add="+")

    def add(self, title: str, *, is_offered: bool = False) -> Panel:
        """Add a view and return its panel."""
        self._headings[title] = Text(self.body, self.bar.theme, title, role="heading", on="card")
        view = super().add(title, is_offered=is_offered)
        view.grid_configure(row=2 * len(self._headings) - 1)
        self._fit()
        return view

    def offer(self, title: str, *, is_offered: bool = True, is_shown: bool = True) -> None:
        """Add a view to the tabs, or remove it; see `TabbedCard.offer`."""
        super().offer(title, is_offered=is_offered, is_shown=is_shown)
        self._fit()

    def show(self, title: str) -> None:
        """Show a view; where all of them are shown, it only becomes the one of the tabs."""
        super().show(title)
        self._place_views()

    def destroy(self) -> None:
        """Also forget the pending redraw."""
        self._pump.forget((self, "height"))
        super().destroy()

    def _fit(self) -> None:
        """Choose between tabs and a stack."""
        offered = [title for title in self.tabs if self.is_offered(title)]
        self.is_stacked = len(offered) > 1 and self.winfo_height() >= self._stacks_from_px
        if self.is_stacked:
            self.bar.pack_forget()
        elif not self.bar.winfo_manager():
            self.pack_bar()
        self._place_views()

    def _place_views(self) -> None:
        pad = self.bar.theme.px
        for number, title in enumerate(self.tabs):
            is_visible = self.is_offered(title) if self.is_stacked else title == self.shown
            heading, view = self._headings[title], self.views[title]
            if is_visible:
                view.grid()
            else:
                view.grid_remove()
            if is_visible and self.is_stacked:
                top = pad(10) if number else pad(12)
                heading.grid(row=2 * number, column=0, sticky="w", padx=(pad(12), 0), pady=(top, pad(4)))
            else:
                heading.grid_remove()
            weight = self._weights[number] if is_visible else 0
            self.body.rowconfigure(2 * number + 1, weight=weight, uniform="views" if weight else "")
