"""A frame that scrolls by wheel, bar and keyboard focus."""

from __future__ import annotations

import sys
import tkinter as tk
from typing import Any

from ui.widgets.auto_bar import AutoBar
from ui.widgets.panel import Panel, focused_widget
from ui.widgets.theme import Theme

_WHEEL_PX = 56
_GUTTER_PX = 16
_MAX_BLANK = 4  # the part of its height that may be empty after a bar next to it has gone
_OWN_WHEEL = ("Text", "Treeview", "Listbox")


_MARGIN_PX = 24  # around a widget that is brought into view


class ScrollFrame(Panel):
    """Put children into `body`; the bar appears only if they do not fit."""

    def __init__(self, master: tk.Misc, theme: Theme, colour: str = "window", *, gutter_px: int = _GUTTER_PX) -> None:
        super().__init__(master, theme, colour)
        self.canvas = tk.Canvas(
            self, background=theme.colour(colour), highlightthickness=0, borderwidth=0, yscrollincrement=1
        )
        self.body = Panel(self.canvas, theme, colour)
        bar = AutoBar(self, theme, self.canvas.yview, on=colour)
        # Hidden until the width is known: everything in it would be laid out and drawn at several other widths first.
        self._window = self.canvas.create_window(0, 0, anchor="nw", window=self.body, state="hidden")
        self._bar = bar
        self._top_px = self._blank_px = self._body_px = self._window_px = 0
        self.canvas.configure(yscrollcommand=self._note_view)
        self.columnconfigure(0, weight=1)
        self.columnconfigure(1, minsize=theme.px(gutter_px))  # reserved also without a bar, so that nothing moves
        self.rowconfigure(0, weight=1)
        self.canvas.grid(row=0, column=0, sticky="nsew")
        bar.grid(row=0, column=1, sticky="nse")
        self.body.bind("<Configure>", self._body_changed)
        # What becomes so short that none of it is in view is only unmapped.
        self.body.bind("<Unmap>", lambda _event: self._set_blank(0))
        self.canvas.bind("<Configure>", self._canvas_changed)

    def apply_theme(self) -> None:
        """Apply the colour of the current mode."""
        super().apply_theme()
        self.canvas.configure(background=self.theme.colour(self.token))

    def scroll_px(self, distance_px: int) -> None:
        """Scroll down, or up for a negative distance, within the content."""
        if self.body.winfo_reqheight() > self.canvas.winfo_height():
            self.canvas.yview_scroll(distance_px, "units")

    def see(self, widget: tk.Misc) -> None:
        """Scroll as little as needed to bring a widget into view; one that is visible moves nothing."""
        self.update_idletasks()
        if not widget.winfo_exists():  # what was pending has removed it
            return
        top = widget.winfo_rooty() - self.body.winfo_rooty()
        bottom = top + widget.winfo_height()
        margin = self.theme.px(_MARGIN_PX)
        view_top = self.canvas.canvasy(0)
        view_bottom = view_top + self.canvas.winfo_height()
        if top < view_top:
            self._scroll_to(top - margin)
        elif bottom > view_bottom:
            self._scroll_to(min(top - margin, bottom + margin - self.canvas.winfo_height()))

    def _scroll_to(self, y: float) -> None:
        height = max(1, self._full_height)
        self.canvas.yview_moveto(max(0.0, y / height))

    def _note_view(self, first: float, last: float) -> None:
        """Show the visible part, and drop the blank room that has been scrolled out of it."""
        self._bar.set(first, last)
        self._top_px = int(self.canvas.canvasy(0))
        blank = max(0, self._top_px + self.canvas.winfo_height() - self.body.winfo_reqheight())
        if blank < self._blank_px:  # a change without need would be reported again, endlessly
            self._set_blank(blank)

    def _body_changed(self, event: tk.Event[Any]) -> None:
        if event.height != self._body_px:  # else it was only scrolled
            self._body_px = event.height
            self._set_blank(0)

    def _canvas_changed(self, event: tk.Event[Any]) -> None:
        """Take the new size. What was scrolled to its end stays where it is when a bar below it goes.

        Blank room follows it then. A window that is made larger shows more of it instead.
        """
        self.canvas.itemconfigure(self._window, width=event.width, state="normal")
        top, window_px = self._top_px, self.winfo_toplevel().winfo_height()
        blank = top + event.height - self.body.winfo_reqheight()
        stays = top > 0 and window_px == self._window_px and blank <= event.height // _MAX_BLANK
        self._window_px = window_px
        self._set_blank(blank if stays else 0)
        if self._blank_px:  # Tk has already moved the view back to the end
            self._scroll_to(top)

    def _set_blank(self, blank_px: int) -> None:
        self._blank_px = max(0, blank_px)
        self.canvas.configure(scrollregion=(0, 0, 0, max(self._full_height, self.canvas.winfo_height())))

    @property
    def _full_height(self) -> int:
        return self.body.winfo_reqheight() + self._blank_px


def scroll_to(widget: tk.Misc) -> None:
    """Bring a widget into view if it is in a scroll frame."""
    frame = _frame_around(widget, is_for_wheel=False)
    if frame is not None and widget is not frame.canvas:
        frame.see(widget)


def bind_wheel(root: tk.Tk) -> None:
    """Make the wheel scroll the frame under the pointer, and Tab scroll the focused widget into view.

    A widget that gets the focus back, as after a menu or a dialog, stays where the user has scrolled it.
    """
    focused: dict[str, str] = {}  # in each window

    def on_wheel(event: tk.Event[Any]) -> None:
        frame = _frame_around(event.widget)
        if frame is not None:
            frame.scroll_px(frame.theme.px(_wheel_clicks(event) * _WHEEL_PX))

    def on_focus(event: tk.Event[Any]) -> None:
        # Tk also reports the focus to everything around the widget that has it.
        widget = event.widget
        if isinstance(widget, tk.Menu) or not isinstance(widget, tk.Misc) or focused_widget(root) is not widget:
            return
        window = str(widget.winfo_toplevel())
        if str(widget) == window or focused.get(window) == str(widget):
            return
        focused[window] = str(widget)
        scroll_to(widget)

    for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
        root.bind_all(sequence, on_wheel, add=True)
    root.bind_all("<FocusIn>", on_focus, add=True)


def _wheel_clicks(event: tk.Event[Any]) -> float:
    if event.num in (4, 5):
        return -1 if event.num == 4 else 1
    return -event.delta if sys.platform == "darwin" else -event.delta / 120


def _frame_around(widget: object, *, is_for_wheel: bool = True) -> ScrollFrame | None:
    """Return the nearest scroll frame around a widget, unless something nearer has its own scrolling."""
    while isinstance(widget, tk.Misc):
        if isinstance(widget, ScrollFrame):
            return widget
        if is_for_wheel and widget.winfo_class() in _OWN_WHEEL:
            return None
        widget = widget.master
    return None
