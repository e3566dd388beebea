"""Modal windows: a message, advice and a row of buttons."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, TypeVar

from ui.loop.interaction import Answer, Severity
from ui.loop.pump import Drain, Pump, hurry
from ui.loop.signal import Signal
from ui.widgets.controls import Button, ButtonStyle
from ui.widgets.panel import Panel, Text, restyle
from ui.widgets.theme import GAP, PAD, Theme
from ui.widgets.variables import remove_traces, variables_in
from ui.widgets.window import FRAME_PX, forget_window

W = TypeVar("W", bound="Window")
_WRAP_PX = 460
_TOKENS = {"plain": "accent", "warning": "warning", "error": "error"}


def bring_to_front(root: tk.Misc, kind: type[W]) -> W | None:
    """Bring an open window of a class to the front and return it; None if none is open."""
    window = next((w for w in root.winfo_children() if isinstance(w, kind)), None)
    if window is not None:
        window.lift()
        window.focus_set()
    return window


class Window(tk.Toplevel):
    """A secondary window: themed, closed by Escape, removed from customtkinter's registry when destroyed.

    One that `is_single` closes an older one of its class.
    """

    is_single: ClassVar[bool] = False

    def __init__(self, root: tk.Misc, theme: Theme, title: str) -> None:
        hurry()  # until the pump has a turn without drawing
        for older in [w for w in root.winfo_children() if self.is_single and isinstance(w, type(self))]:
            older.close()
        super().__init__(root)
        self._cleanups: list[Callable[[], object]] = []
        self.withdraw()
        self.title(title)
        self.theme = theme
        self.apply_theme()
        self.transient(root.winfo_toplevel())
        self.bind("<Escape>", lambda _e: self.close())
        self.protocol("WM_DELETE_WINDOW", self.close)

    def apply_theme(self) -> None:
        """Apply the colour of the current mode."""
        # A line at the edge: without a window manager nothing else separates it from the window below.
        line = self.theme.colour("line")
        self.configure(background=self.theme.colour("window"), highlightthickness=1, highlightbackground=line)
        self.configure(highlightcolor=line)

    def close(self) -> None:
        """Destroy the window; nothing if it is gone, as of two changes that both close it."""
        if self.winfo_exists():
            self.destroy()

    def at_close(self, *cleanups: Callable[[], object]) -> None:
        """Call these when the window is destroyed, such as the functions that unsubscribe it from models."""
        self._cleanups += cleanups

    def redraw_after(self, pump: Pump, draw: Callable[[], None], *signals: Signal[[]]) -> None:
        """Call `draw` on a turn of the pump after each of these signals, until the window is destroyed."""
        soon = partial(pump.redraw_soon, self, draw)
        self.at_close(*(signal.subscribe(soon) for signal in signals), partial(pump.forget, self))

    def drain(self, pump: Pump, source: Drain) -> None:
        """Drain a source on every turn of the pump, until the window is destroyed."""
        pump.add_source(source)
        self.at_close(partial(pump.remove_source, source))

    def destroy(self) -> None:
        """Also clean up, and remove the window from customtkinter's registry, and the traces of its variables."""
        for clean_up in self._cleanups:
            clean_up()
        variables = variables_in(self)
        super().destroy()
        remove_traces(variables)
        forget_window(self)

    def add_footer(self, label: str = "Close", *, above_px: int = PAD, style: ButtonStyle = "plain") -> Panel:
        """Add the row at the bottom, with the button that closes the window at its right; return the row."""
        px = self.theme.px
        footer = Panel(self, self.theme)
        footer.pack(side="bottom", fill="x", padx=px(PAD), pady=(px(above_px), px(PAD)))
        self.close_button = Button(footer, self.theme, label, self.close, style=style, width=92)
        self.close_button.pack(side="right")
        return footer

    def add_main_button(self, label: str, command: Callable[[], object], *, width: int = 92) -> Button:
        """Add the main button of the window at the right end of its footer, and return it."""
        button = Button(self.close_button.master, self.theme, label, command, style="primary", width=width)
        button.pack(side="right", padx=(GAP, 0), before=self.close_button)
        return button

    def appear(self, width_px: int = 0, height_px: int = 0) -> None:
        """Show the window centred over the main one, fully on the screen, and give it the keyboard."""
        self.update_idletasks()
        main = self.master.winfo_toplevel()
        width = self.theme.px(width_px) or self.winfo_reqwidth()
        height = self.theme.px(height_px) or self.winfo_reqheight()
        room = self.winfo_screenheight() - FRAME_PX
        width, height = min(width, self.winfo_screenwidth()), min(height, room)
        x = main.winfo_rootx() + (main.winfo_width() - width) // 2
        y = main.winfo_rooty() + (main.winfo_height() - height) // 3
        x = min(max(0, x), self.winfo_screenwidth() - width)
        y = min(max(0, y), room - height)
        self.geometry(f"{width}x{height}+{x}+{y}")
        restyle(self)
        self.deiconify()
        self.lift()
        self.focus_set()  # a window manager may leave the focus where a page has just taken it


class Dialog(Window):
    """Asks a question and waits for the answer."""

    def __init__(
        self,
        root: tk.Misc,
        theme: Theme,
        title: str,
        message: str,
        answers: Sequence[Answer],
        *,
        severity: Severity = "plain",
    ) -> None:
        super().__init__(root, theme, title)
        self.answer: str | None = None
        self.buttons: dict[str, Button] = {}
        self.first_entry: tk.Entry | None = None
        px = theme.px
        Panel(self, theme, _TOKENS[severity], height=px(3)).pack(fill="x")
        self.content = Panel(self, theme)
        self.content.pack(fill="both", expand=True, padx=px(PAD + 8), pady=(px(PAD + 4), px(PAD)))
        Text(self.content, theme, title, role="heading", wrap_px=_WRAP_PX).pack(anchor="w")
        if message:
            Text(self.content, theme, message, wrap_px=_WRAP_PX).pack(anchor="w", pady=(px(8), 0))
        self._add_buttons(answers)

    def ask(self) -> str | None:
        """Show the dialog and return the name of the answer; None if it was closed."""
        self.resizable(False, False)
        self.appear()
        self.wait_visibility()
        self.grab_set()
        default = next((b for b in self.buttons.values() if b.style == "primary"), None)
        if default is not None:
            self.focus_first(default)
        self.wait_window()
        return self.answer

    def focus_first(self, default: Button) -> None:
        """Focus the entry to type into, if the dialog has one; Return presses the default button."""
        (self.first_entry or self).focus_set()
        self.bind("<Return>", lambda _e: default.invoke())

    def choose(self, name: str) -> None:
        """Store an answer and close."""
        self.answer = name
        self.close()

    def _add_buttons(self, answers: Sequence[Answer]) -> None:
        px = self.theme.px
        row = Panel(self, self.theme)
        # Before the content, which is cut where the screen is too low for all of it.
        row.pack(side="bottom", fill="x", padx=px(PAD + 8), pady=(0, px(PAD + 4)), before=self.content)
        for answer in reversed(answers):
            button = Button(
                row,
                self.theme,
                answer.label,
                partial(self.choose, answer.name),
                style="primary" if answer.is_default else "plain",
                width=92,
            )
            button.pack(side="right", padx=(GAP, 0))
            button.lower()  # made first, but last for Tab, as it looks
            self.buttons[answer.name] = button
