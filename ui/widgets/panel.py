"""Plain Tk building blocks with colours by token, ten times cheaper than customtkinter's."""

from __future__ import annotations

import math
import tkinter as tk
from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

from ui.widgets.theme import Theme


def focused_widget(widget: tk.Misc) -> tk.Misc | None:
    """Return the program's widget with the focus on the display of a given widget; else None.

    Tk creates widgets of its own (its file dialog on X11, the clones of menus); `focus_get` raises KeyError for them.
    """
    try:
        return widget.focus_get()
    except KeyError:
        return None


@runtime_checkable
class ThemedWidget(Protocol):
    """A widget that updates its colours when the mode changes."""

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""


def restyle(widget: tk.Misc) -> None:
    """Apply the current mode to a widget and its children."""
    if isinstance(widget, ThemedWidget):
        widget.apply_theme()
    for child in widget.winfo_children():
        restyle(child)


def call_later(widget: tk.Misc, delay: int | Literal["idle"], call: Callable[[], object]) -> str:
    """Call a function after some milliseconds or once Tk is idle, unless the widget is gone by then; return the timer.

    The root has the timer. That of a widget's own `after` outlives the widget and its command, which Tk reports in a
    dialog of its own.
    """
    root = widget._root()  # type: ignore[attr-defined]
    timer: str = root.after(delay, lambda: call() if widget.winfo_exists() else None)
    return timer


class Panel(tk.Frame):
    """A frame in the colour of a token."""

    def __init__(self, master: tk.Misc, theme: Theme, colour: str = "window", **options: Any) -> None:
        super().__init__(master, background=theme.colour(colour), borderwidth=0, highlightthickness=0, **options)
        self.theme = theme
        self.token = colour

    def __setattr__(self, name: str, value: object) -> None:
        # customtkinter replaces `configure` of a plain frame by a closure for each child put into it, which keeps
        # destroyed children alive; our colours change through `apply_theme`, so it is not needed.
        if name not in ("config", "configure"):
            super().__setattr__(name, value)

    def apply_theme(self) -> None:
        """Apply the colour of the current mode."""
        self.configure(background=self.theme.colour(self.token))

    def recolour(self, token: str) -> None:
        """Change the colour token."""
        if token != self.token:
            self.token = token
            self.apply_theme()


class Text(tk.Label):
    """A line or a paragraph: its role sets the font, its token the colour."""

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        text: str = "",
        *,
        role: str = "body",
        colour: str = "text",
        on: str = "window",
        wrap_px: int = 0,
        **options: Any,
    ) -> None:
        options = {"anchor": "w", "justify": "left", "padx": 0, "pady": 0, **options}
        super().__init__(
            master,
            text=text,
            font=theme.font(role),
            foreground=theme.colour(colour),
            background=theme.colour(on),
            borderwidth=0,
            highlightthickness=0,
            wraplength=theme.px(wrap_px),
            **options,
        )
        self.theme = theme
        self.token = colour
        self.on = on

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        self.configure(foreground=self.theme.colour(self.token), background=self.theme.colour(self.on))

    def recolour(self, token: str, on: str | None = None) -> None:
        """Change the colour token."""
        if (token, on or self.on) != (self.token, self.on):
            self.token, self.on = token, on or self.on
            self.apply_theme()

    def set_text(self, text: str) -> None:
        """Change the text."""
        if self.cget("text") != text:
            self.configure(text=text)


class WrappedText(Text):
    """A paragraph that is wrapped at the width it is given; place it with `sticky="ew"` or `fill="x"`."""

    def __init__(self, master: tk.Misc, theme: Theme, text: str = "", **options: Any) -> None:
        super().__init__(master, theme, text, width=1, **options)
        self.bind("<Configure>", lambda event: self.configure(wraplength=max(40, event.width)))


def rule(master: tk.Misc, theme: Theme) -> Panel:
    """Return a thin horizontal line."""
    return Panel(master, theme, "line", height=1)


_GAP_PX = 6


class Flow(Panel):
    """Add widgets whose master it is; widgets added with `joined` stay on the line of the one before.

    Where the widgets need more than its width, they continue on the next line. `gap_px` is between widgets of a line.
    """

    def __init__(self, master: tk.Misc, theme: Theme, *, gap_px: int = _GAP_PX, on: str = "card") -> None:
        super().__init__(master, theme, on, height=1)
        self._gap_px = gap_px
        self._groups: list[list[tk.Widget]] = []
        self._width = 0
        self.bind("<Configure>", self._follow_size)

    def add(self, widget: tk.Widget, *, joined: bool = False, at: int | None = None) -> None:
        """Add a widget at the end, or at a place."""
        if joined:
            self._groups[-1].append(widget)
        else:
            self._groups.insert(len(self._groups) if at is None else at, [widget])

    def remove(self, widget: tk.Widget) -> None:
        """Remove a widget that was added alone."""
        self._groups.remove([widget])
        tk.Widget.place_forget(widget)

    def show(self, widget: tk.Widget, *, is_shown: bool, at: int | None = None) -> None:
        """Add a widget at the end, or at a place, or remove it."""
        if is_shown != ([widget] in self._groups):
            if is_shown:
                self.add(widget, at=at)
            else:
                self.remove(widget)
            self.lay_out()

    def lay_out(self) -> None:
        """Place the widgets within the current width, and take the height that they need."""
        gap, line_gap = self.theme.px(self._gap_px), self.theme.px(_GAP_PX)
        room = self._width or math.inf  # the width is unknown until it is shown
        lines: list[list[tk.Widget]] = [[]]
        used = 0
        for group in self._groups:
            length = sum(widget.winfo_reqwidth() for widget in group) + gap * (len(group) - 1)
            if lines[-1] and used + length > room:
                lines.append([])
                used = 0
            lines[-1] += group
            used += length + gap
        top = 0
        for line in lines:
            height = max((widget.winfo_reqheight() for widget in line), default=0)
            left = 0
            for widget in line:
                # tk's own: customtkinter's refuses positions in pixels that are scaled already
                tk.Widget.place_configure(widget, x=left, y=top + (height - widget.winfo_reqheight()) // 2)
                left += widget.winfo_reqwidth() + gap
            top += height + line_gap
        needed = max(1, top - line_gap)
        if int(self.cget("height")) != needed:
            self.configure(height=needed)

    def _follow_size(self, event: tk.Event[Any]) -> None:
        if event.width != self._width:
            self._width = event.width
            self.lay_out()
