"""Saving what was edited before something else is opened, with a question about what cannot be saved. No Tk."""

from __future__ import annotations

from typing import Protocol

from ui.features.captions.session import EditorSession, Unsaved
from ui.features.captions.unsaved import ask_about
from ui.loop.interaction import Interaction


class Asker(Protocol):
    """The window that asks: it shows what became of the open image."""

    def is_open(self) -> bool:
        """Whether the window still exists; it may be closed while a question is open."""

    def discarded(self) -> None:
        """Called when the edits were given up for the file."""

    def kept(self) -> None:
        """Called when the edits were written over the file."""


class Saving:
    """Call `settle` before the open image changes."""

    def __init__(self, session: EditorSession, interaction: Interaction, asker: Asker) -> None:
        self.is_asking = False
        self._session, self._interaction, self._asker = session, interaction, asker

    def settle(self) -> bool:
        """Save what was edited, and ask about what cannot be; return whether nothing is left to save."""
        if self.is_asking:
            return False
        self.is_asking = True
        try:
            return all(self._settled(unsaved) for unsaved in self._session.save())
        finally:
            self.is_asking = False

    def _settled(self, unsaved: Unsaved) -> bool:
        reason = unsaved.reason
        while True:
            chosen = ask_about(self._interaction, unsaved, reason)
            if not self._asker.is_open() or chosen == "stay":
                return False
            if chosen == "discard":
                self._session.discard(unsaved)
                self._asker.discarded()
                return True
            try:
                self._session.keep_mine(unsaved)
            except OSError as error:
                reason = error.strerror or str(error)
                continue
            self._asker.kept()
            return True
