"""Saving the session while the user works, and offering what windows that are gone have left unsaved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ui.app.session_files import save_session
from ui.forms.model import Document, Draft, FormModel
from ui.forms.preferences import UiSettings
from ui.loop.background import OrderedWrites
from ui.loop.pump import Pump

QUIET_SECONDS = 0.7  # without an edit


class SessionSaver:
    """Writes the session a moment after each edit, in the background, and at once when the window closes."""

    def __init__(self, file: Path, form: FormModel, pump: Pump, settings: Callable[[], UiSettings]) -> None:
        self._file = file
        self._form = form
        self._pump = pump
        self._settings = settings
        self._saved_state = self._state()
        self._writes = OrderedWrites()

    def follow_edits(self) -> None:
        """Save after each edit from now on."""
        self._form.changed.subscribe(self._follow_edit)

    def save_soon(self, done: Callable[[bool], None] = lambda _is_saved: None) -> None:
        """Save in the background: flushing to a busy disk takes a quarter of a second.

        `done` is called with whether it was saved.
        """
        self._pump.lasting.run(self._writer(), done)

    def save_now(self, settings: UiSettings | None = None) -> None:
        """Save before this returns; what is still being written in the background is older, and does not replace it.

        With `settings`, those are saved and the window is not asked for its own.
        """
        self._writer(settings)()

    def _state(self) -> tuple[Document, Mapping[str, Draft]]:
        return self._form.document, self._form.drafts

    @property
    def _is_edited(self) -> bool:
        (document, drafts), (saved_document, saved_drafts) = self._state(), self._saved_state
        return document is not saved_document or drafts != saved_drafts

    def _follow_edit(self) -> None:
        if self._is_edited:
            self._pump.redraw_soon("session", self._save_edit, quiet_seconds=QUIET_SECONDS)

    def _save_edit(self) -> None:
        if self._is_edited:
            self.save_soon()

    def _writer(self, settings: UiSettings | None = None) -> Callable[[], bool]:
        """Return the function that writes the session as it is now."""
        self._saved_state = document, drafts = self._state()
        settings = settings or self._settings()
        return self._writes.following(partial(save_session, self._file, document, settings, drafts))
