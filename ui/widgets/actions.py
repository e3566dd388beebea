"""User actions as named records; buttons, menus and shortcuts are made from this one table."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """A user action: its name in code, label, shortcut, condition and function.

    `needs` states the condition, where it is not evident.
    """

    name: str
    label: str
    run: Callable[[], object]
    shortcut: str = ""
    is_enabled: Callable[[], bool] = lambda: True
    help: str = ""
    needs: str = ""

    @property
    def tip(self) -> str:
        """The tooltip text, with what the action needs while it is disabled."""
        words = self.help or self.label.rstrip("…")
        text = f"{words} ({self.shortcut})" if self.shortcut else words
        if not self.needs or self.is_enabled():
            return text
        return f"{text if text.endswith('.') else f'{text}.'}\n{self.needs}"


class ActionTable:
    """All actions of the window by name."""

    def __init__(self) -> None:
        self._actions: dict[str, Action] = {}

    def add(self, *actions: Action) -> None:
        """Add actions. A duplicate name or shortcut is a bug."""
        for action in actions:
            assert action.name not in self._actions, action.name
            self._actions[action.name] = action
        assert not self.clashes(), self.clashes()

    def __getitem__(self, name: str) -> Action:
        return self._actions[name]

    def __iter__(self) -> Iterator[Action]:
        return iter(self._actions.values())

    def run(self, name: str) -> None:
        """Run an action if it is enabled."""
        action = self._actions[name]
        if action.is_enabled():
            action.run()

    def clashes(self) -> list[str]:
        """Return the shortcuts that more than one action uses."""
        keys = Counter(sequences_of(a.shortcut)[0] for a in self if a.shortcut)
        return [key for key, times in keys.items() if times > 1]


def sequences_of(shortcut: str, *, platform: str = sys.platform) -> tuple[str, ...]:
    """Return the Tk event sequences of a shortcut such as "Ctrl+Shift+S", with and without caps lock."""
    *modifiers, key = shortcut.split("+")
    control = "Command" if platform == "darwin" else "Control"
    names = {"Ctrl": control, "Shift": "Shift", "Alt": "Alt"}
    prefix = "".join(f"{names[m]}-" for m in modifiers)
    if len(key) > 1:
        return (f"<{prefix}{key}>",)
    if key.isdigit():
        return (f"<{prefix}Key-{key}>",)
    first, second = (key.upper(), key.lower()) if "Shift" in modifiers else (key.lower(), key.upper())
    return (f"<{prefix}{first}>", f"<{prefix}{second}>")
