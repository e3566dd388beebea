"""One tooltip window for the whole program; it appears beside the pointer after a delay."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from ui.theme import Theme

_DELAY_MS = 500
_WRAP_PX = 340


class Tooltips:
    """Shows the tip of the widget under the pointer."""

    def __init__(self, root: tk.Tk, theme: Theme) -> None:
        self._root = root
        self._theme = theme
        self._window: tk.Toplevel | None = None
        self._label: tk.Label | None = None
        self._waiting = ""
        self._clicked = ""  # the widget that was clicked: it shows no tip until the pointer has been elsewhere
        self._owners: WeakSet[tk.Misc] = WeakSet()
        self._is_closed = False
        root.bind_all("<KeyPress>", self._leave, add=True)
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

    def show(self, text: str, x: int, y: int) -> None:
        """Show a tip now, near a point and fully on the screen."""
        window, label = self._ready_window()
        label.configure(text=text)
        window.update_idletasks()
        width, height = label.winfo_reqwidth(), label.winfo_reqheight()
        left = min(x + self._theme.px(14), self._root.winfo_screenwidth() - width - 4)
        below = y + self._theme.px(18)
        top = below if below + height < self._root.winfo_screenheight() else y - height - self._theme.px(8)
        window.geometry(f"+{max(0, left)}+{max(0, top)}")
        window.deiconify()
        window.lift()

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

    @property
    def shown_text(self) -> str:
        """The text of the visible tip, or an empty text."""
        if self._window is None or self._label is None or not self._window.winfo_viewable():
            return ""
        return str(self._label.cget("text"))

    def point_at(self, event: tk.Event[Any], text: Callable[[], str]) -> None:
        """Show `text()` in place of another tip if the pointer stays, as for one of several things on a canvas."""
        self._leave()
        if self._is_closed:
            return
        x, y = event.x_root, event.y_root
        self._waiting = self._root.after(_DELAY_MS, lambda: self._due(text, x, y))

    def _due(self, text: Callable[[], str], x: int, y: int) -> None:
        self._waiting = ""
        words = text()
        if words:
            self.show(words, x, y)

    def _pressed(self, event: tk.Event[Any]) -> None:
        self._leave()
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
        if self._window is not None:
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
