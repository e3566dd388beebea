"""Saving the session while the user edits, so that a killed window loses nothing. No Tk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from ui.app.session_store import save_session
from ui.forms.model import Document, Draft, FormModel
from ui.forms.preferences import UiSettings
from ui.loop.pump import Pump

QUIET_SECONDS = 0.7  # without an edit


class SessionSaver:
    """Writes the session a moment after each edit, in the background, and at once where the window closes."""

    def __init__(self, file: Path, form: FormModel, pump: Pump, settings: Callable[[], UiSettings]) -> None:
        self._file = file
        self._form = form
        self._pump = pump
        self._settings = settings
        self._saved = self._state()
        self._lock = threading.Lock()
        self._taken = self._written = 0  # numbers of the states that were taken and written

    def follow_edits(self) -> None:
        """Save after each edit from now on."""
        self._form.changed.subscribe(self._edited)

    def save_soon(self, done: Callable[[bool], None] = lambda _is_saved: None) -> None:
        """Save in the background: flushing to a busy disk takes a quarter of a second.

        `done` is called with whether it was saved.
        """
        self._pump.lasting.run(self._writer(), done)

    def save_now(self) -> None:
        """Save before this returns; what is still being written in the background is older, and does not replace it."""
        self._writer()()

    def _state(self) -> tuple[Document, Mapping[str, Draft]]:
        return self._form.document, self._form.drafts

    @property
    def _is_edited(self) -> bool:
        (document, drafts), (saved, saved_drafts) = self._state(), self._saved
        return document is not saved or drafts != saved_drafts

    def _edited(self) -> None:
        if self._is_edited:
            self._pump.redraw_soon("session", self._save_edit, quiet_seconds=QUIET_SECONDS)

    def _save_edit(self) -> None:
        if self._is_edited:
            self.save_soon()

    def _writer(self) -> Callable[[], bool]:
        """Return the function that writes the session as it is now."""
        self._saved = document, drafts = self._state()
        settings = self._settings()
        self._taken += 1
        number = self._taken

        def write() -> bool:
            with self._lock:
                if number <= self._written:
                    return True
                if not save_session(self._file, document, settings, drafts):
                    return False
                self._written = number
                return True

        return write
