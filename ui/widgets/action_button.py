"""Buttons made from actions: the label, tooltip and state come from the action; and other buttons with a tooltip."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from ui.widgets.actions import Action, ActionTable
from ui.widgets.controls import Button, ButtonStyle
from ui.widgets.panel import Flow
from ui.widgets.theme import GAP, Theme
from ui.widgets.tooltip import Tooltips


class ActionButtons:
    """Creates the buttons, and enables or disables those of actions after changes."""

    def __init__(self, actions: ActionTable, theme: Theme, tips: Tooltips) -> None:
        self._actions = actions
        self._theme = theme
        self._tips = tips
        self._buttons: list[tuple[Button, Action]] = []

    def make(self, master: tk.Misc, name: str, *, style: ButtonStyle = "plain", on: str = "window") -> Button:
        """Return a button for a named action."""
        action = self._actions[name]
        button = Button(master, self._theme, action.label, lambda: self._actions.run(name), style=style, on=on)
        button.set_enabled(action.is_enabled())
        self._tips.attach(button, lambda: action.tip)
        self._buttons.append((button, action))
        return button

    def add(
        self,
        row: tk.Misc,
        label: str,
        command: Callable[[], object],
        tip: str,
        *,
        on: str = "window",
        width: int = 0,
        is_last: bool = False,
    ) -> Button:
        """Add a button with a tooltip to a row: behind the others at its left, or before those at its right.

        A flow continues on the next line where it is narrow.
        """
        button = Button(row, self._theme, label, command, on=on, width=width)
        self._tips.attach(button, lambda: tip)
        if isinstance(row, Flow):
            row.add(button)
            return button
        button.pack(side="right" if is_last else "left", padx=(GAP, 0) if is_last else (0, GAP))
        return button

    def refresh(self) -> None:
        """Update the state of every button."""
        self._buttons = [(b, a) for b, a in self._buttons if b.winfo_exists()]
        for button, action in self._buttons:
            button.set_enabled(action.is_enabled())
