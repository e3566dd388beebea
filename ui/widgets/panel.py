"""Plain Tk building blocks with colours by token, ten times cheaper than customtkinter's."""

from __future__ import annotations

import tkinter as tk
from typing import Any, Protocol, runtime_checkable

from ui.widgets.theme import Theme


@runtime_checkable
class Styled(Protocol):
    """A widget that updates its colours when the mode changes."""

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""


def restyle(widget: tk.Misc) -> None:
    """Apply the current mode to a widget and its children."""
    if isinstance(widget, Styled):
        widget.apply_theme()
    for child in widget.winfo_children():
        restyle(child)


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


def rule(master: tk.Misc, theme: Theme, *, vertical: bool = False) -> Panel:
    """Return a thin line."""
    size = {"width": 1} if vertical else {"height": 1}
    return Panel(master, theme, "line", **size)
