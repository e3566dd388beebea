"""One tooltip window for the whole program; it appears next to the pointer after a delay."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from ui.widgets.theme import Theme

_DELAY_MS = 500
_SHOWN_MS = 12_000  # then it has been read, and what it covers may be wanted
_LOW_PX = 240  # the height of a widget that a tip is placed below, or above, and does not cover
_WRAP_PX = 340


class Tooltips:
    """Shows the tip of the widget under the pointer."""

    def __init__(self, root: tk.Tk, theme: Theme) -> None:
        self._root = root
        self._theme = theme
        self._window: tk.Toplevel | None = None
        self._label: tk.Label | None = None
        self._waiting = ""
        self._hiding = ""
        self._rested_at = root.winfo_pointerxy()  # the pointer, at the last key or click
        self._clicked = ""  # the widget that was clicked: it shows no tip until the pointer has been elsewhere
        self._owners: WeakSet[tk.Misc] = WeakSet()
        self._pointed_at: WeakSet[tk.Misc] = WeakSet()
        self._last_pointed_at = ""
        self._is_closed = False
        root.bind_all("<KeyPress>", self._typed, add=True)
        for sequence in ("<MouseWheel>", "<Button-4>", "<Button-5>"):  # what is below the pointer moves
            root.bind_all(sequence, self._typed, add=True)
        for sequence in ("<FocusOut>", "<Unmap>"):  # another program's window comes in front
            root.bind(sequence, self._root_left, add=True)
        for button in ("<Button-1>", "<Button-2>", "<Button-3>"):  # "<Button>" would yield to a binding of one of them
            root.bind_all(button, self._pressed, add=True)
        root.bind_all("<Enter>", self._entered, add=True)

    def attach(self, widget: tk.Misc, text: Callable[[], str]) -> None:
        """Show `text()` when the pointer stays on a widget or its children; an empty text shows nothing.

        After a click it is not shown again until the pointer has left the widget: the release of a button, a menu and
        a changed label all make Tk report that the pointer entered it.
        """
        self._owners.add(widget)
        owner = str(widget)

        def entered(event: tk.Event[Any]) -> None:
            if owner != self._clicked:
                self.point_at(event, text)

        for part in (widget, *widget.winfo_children()):
            # tk.Misc.bind: customtkinter's own `bind` reaches only some of its parts.
            tk.Misc.bind(part, "<Enter>", entered, add="+")
            tk.Misc.bind(part, "<Leave>", self._left, add="+")

    def show(self, text: str, x: int, y: int, *, edges: tuple[int, int] | None = None) -> None:
        """Show a tip now, near a point and fully on the screen; outside the upper and lower edge of a low widget."""
        window, label = self._ready_window()
        label.configure(text=text)
        window.update_idletasks()
        width, height = label.winfo_reqwidth(), label.winfo_reqheight()
        left = min(x + self._theme.px(14), self._root.winfo_screenwidth() - width - 4)
        upper, lower = edges or (y, y)
        below = max(y + self._theme.px(18), lower + self._theme.px(4))
        has_room = below + height < self._root.winfo_screenheight()
        top = below if has_room else min(y - self._theme.px(8), upper - self._theme.px(4)) - height
        window.geometry(f"+{max(0, left)}+{max(0, top)}")
        window.deiconify()
        window.lift()
        self._hiding = self._root.after(_SHOWN_MS, self._leave)

    def close(self) -> None:
        """Hide the tip."""
        self._leave()
        self._is_closed = True

    def renew(self) -> None:
        """Build the tip anew when it is shown next, at another scale."""
        self._leave()
        if self._window is not None:
            self._window.destroy()
        self._window = self._label = None
        self._clicked = ""

    def point_at(self, event: tk.Event[Any], text: Callable[[], str], edges: tuple[int, int] | None = None) -> None:
        """Show `text()` in place of another tip if the pointer stays, as for one of several things on a canvas.

        `edges` are the top and the bottom of that thing on the screen. A low widget needs none: its own are used.
        """
        self._leave()
        if self._is_closed:
            return
        self._follow_end_of(event.widget)
        x, y = event.x_root, event.y_root
        if (x, y) == self._rested_at:
            return  # a page was opened below the pointer, which has not moved
        self._waiting = self._root.after(_DELAY_MS, lambda: self._due(text, x, y, event.widget, edges))

    def _follow_end_of(self, widget: tk.Misc) -> None:
        """Hide the tip with its widget: Tk does not report that the pointer leaves a widget that is destroyed."""
        self._last_pointed_at = str(widget)
        if isinstance(widget, tk.Misc) and widget not in self._pointed_at:
            self._pointed_at.add(widget)
            tk.Misc.bind(widget, "<Destroy>", self._gone, add="+")

    def _gone(self, event: tk.Event[Any]) -> None:
        if not self._is_closed and str(event.widget) == self._last_pointed_at:
            self._leave()

    def _due(self, text: Callable[[], str], x: int, y: int, widget: tk.Misc, edges: tuple[int, int] | None) -> None:
        self._waiting = ""
        words = text()
        if words and widget.winfo_viewable():
            top, height = widget.winfo_rooty(), widget.winfo_height()
            own_edges = (top, top + height) if height <= self._theme.px(_LOW_PX) else None
            self.show(words, x, y, edges=edges or own_edges)

    def _typed(self, _event: object = None) -> None:
        """Hide the tip, and show none for what appears below the pointer before it moves."""
        self._leave()
        self._rested_at = self._root.winfo_pointerxy()

    def _root_left(self, event: tk.Event[Any]) -> None:
        if event.widget is self._root:
            self._leave()

    def _pressed(self, event: tk.Event[Any]) -> None:
        self._typed()
        part = event.widget
        while isinstance(part, tk.Misc) and part not in self._owners:
            part = part.master
        self._clicked = str(part) if isinstance(part, tk.Misc) else ""

    def _entered(self, event: tk.Event[Any]) -> None:
        """Let the clicked widget show its tip again once the pointer is on another one.

        Menus do not count, nor what the widget is in: Tk reports that the pointer enters all of it when a menu closes.
        """
        path, clicked = str(event.widget), self._clicked
        if not clicked or path == "." or isinstance(event.widget, str | tk.Menu):  # a clone of a menu is a str
            return
        if not f"{path}.".startswith(f"{clicked}.") and not clicked.startswith(f"{path}."):
            self._clicked = ""

    def _left(self, event: tk.Event[Any]) -> None:
        """Hide the tip; let the clicked widget show it again if the pointer has left it, and is not only grabbed."""
        self._leave()
        widget = event.widget
        is_inside = 0 <= event.x < widget.winfo_width() and 0 <= event.y < widget.winfo_height()
        if not is_inside and self._clicked and str(widget) == self._clicked:
            self._clicked = ""

    def _leave(self, _event: object = None) -> None:
        if self._waiting:
            self._root.after_cancel(self._waiting)
            self._waiting = ""
        if self._hiding:
            self._root.after_cancel(self._hiding)
            self._hiding = ""
        if self._window is not None and self._window.winfo_exists():
            self._window.withdraw()

    def _ready_window(self) -> tuple[tk.Toplevel, tk.Label]:
        if self._window is None or self._label is None:
            self._window = tk.Toplevel(self._root)
            self._window.withdraw()
            self._window.overrideredirect(True)
            theme = self._theme
            self._label = tk.Label(
                self._window,
                font=theme.font("small"),
                justify="left",
                anchor="w",
                wraplength=theme.px(_WRAP_PX),
                padx=theme.px(10),
                pady=theme.px(8),
                borderwidth=0,
            )
            self._label.pack()
        colours = {"background": self._theme.colour("tip"), "foreground": self._theme.colour("on_tip")}
        self._label.configure(**colours)
        return self._window, self._label
