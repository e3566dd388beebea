"""Notices: sentences with buttons that stay until they are answered, and never block the window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ui.loop.signal import Signal

CRASHED_RUN = "crashed run"  # the key of the notice of a run that ended unexpectedly


class Reply(NamedTuple):
    """A button of a notice. With `stays` the notice is not dismissed by it."""

    label: str
    press: Callable[[], object]
    stays: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence and its buttons, the main one first. A notice of the same key replaces it.

    With `until_start` it is withdrawn when a run starts: it is about what was just done, and was not used.
    """

    key: str
    text: str
    replies: tuple[Reply, ...] = ()
    on_dismiss: Callable[[], object] | None = None
    dismiss_label: str = "Dismiss"
    until_start: bool = False


class Notices:
    """The notices of the window, the newest first."""

    def __init__(self) -> None:
        self.items: tuple[Notice, ...] = ()
        self.changed: Signal[[]] = Signal()

    def show(self, notice: Notice) -> None:
        """Show a notice."""
        self.items = (notice, *(n for n in self.items if n.key != notice.key))
        self.changed()

    def reply(self, notice: Notice, reply: Reply) -> None:
        """Press a button of a notice."""
        if not reply.stays:
            self.remove(notice.key)
        reply.press()

    def dismiss(self, notice: Notice) -> None:
        """Dismiss a notice, as the user does."""
        self.remove(notice.key)
        if notice.on_dismiss is not None:
            notice.on_dismiss()

    def remove(self, key: str) -> None:
        """Remove a notice that is no longer true."""
        kept = tuple(n for n in self.items if n.key != key)
        if kept != self.items:
            self.items = kept
            self.changed()

    def withdraw_before_start(self) -> None:
        """Withdraw the notices that a start makes obsolete."""
        for notice in self.items:
            if notice.until_start:
                self.remove(notice.key)
