"""Saving the session while the user works, and offering what windows that are gone have left unsaved."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from modules.system.file_lock import FileLock, LockTaken
from ui.app.session_files import (
    AbandonedSession,
    HeldSession,
    find_abandoned_sessions,
    lock_of,
    read_abandoned,
    remove_session,
    save_session,
)
from ui.forms.model import Document, Draft, FormModel
from ui.forms.preferences import UiSettings
from ui.loop.background import Background
from ui.loop.interaction import Answer, Interaction
from ui.loop.pump import Pump
from ui.widgets.notices import Notice, Notices, Reply

QUIET_SECONDS = 0.7  # without an edit


class SessionSaver:
    """Writes the session a moment after each edit, in the background, and at once when the window closes."""

    def __init__(self, file: Path, form: FormModel, pump: Pump, settings: Callable[[], UiSettings]) -> None:
        self._file = file
        self._form = form
        self._pump = pump
        self._settings = settings
        self._saved_state = self._state()
        self._lock = threading.Lock()
        self._newest_number = self._written_number = 0  # of the newest state, and of the newest one that is written

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
        self._newest_number += 1
        number = self._newest_number

        def write() -> bool:
            with self._lock:
                if number <= self._written_number:
                    return True
                if not save_session(self._file, document, settings, drafts):
                    return False
                self._written_number = number
                return True

        return write


_log = logging.getLogger(__name__)
_ALREADY_OPEN = "Another window has opened it."


class SessionOffers:
    """A notice for each session with unsaved work whose window is gone."""

    def __init__(
        self,
        held: HeldSession,
        notices: Notices,
        interaction: Interaction,
        background: Background,
        saver: SessionSaver,
        *,
        open_session: Callable[[Document, Mapping[str, Draft]], None],
        notify: Callable[[str], None],
    ) -> None:
        self._own_file = held.file
        self._notices = notices
        self._interaction = interaction
        self._background = background
        self._saver = saver
        self._open_session = open_session
        self._notify = notify

    def look(self, first: Path, opening_document: Document) -> None:
        """Look for such sessions next to the first window's file, once: when the window opens."""
        self._background.run(lambda: find_abandoned_sessions(first, self._own_file, opening_document), self._offer)

    def _offer(self, sessions: Sequence[AbandonedSession]) -> None:
        for gone in reversed(sessions):  # the newest one is shown first
            text = f"Another window ended with unsaved work: {gone.summary}, from {gone.saved:%d %B, %H:%M}."
            replies = (
                Reply("Open it here", partial(self.open, gone)),
                Reply("Discard…", partial(self.discard, gone), stays=True),
            )
            self._notices.show(Notice(_key(gone), text, replies, dismiss_label="Later"))

    def open(self, gone: AbandonedSession) -> None:
        """Open the work in this window; its file is removed once this window's session contains it."""
        try:
            lock = FileLock(lock_of(gone.file))
        except (LockTaken, OSError):
            self._notify(_ALREADY_OPEN)
            return
        current = read_abandoned(gone.file)
        if current is None:
            lock.release()
            self._notify(_ALREADY_OPEN)
            return

        def finish(is_saved: bool) -> None:
            if is_saved:
                gone.file.unlink(missing_ok=True)
            lock.release()

        self._open_session(current.document, current.drafts)
        self._saver.save_soon(finish)

    def discard(self, gone: AbandonedSession) -> None:
        """Remove the work, if the user confirms it."""
        answers = (Answer("discard", "Discard"), Answer("keep", "Keep it", is_default=True))
        message = f"{gone.summary[0].upper()}{gone.summary[1:]}, from {gone.saved:%d %B, %H:%M}. This cannot be undone."
        if self._interaction.choose("Discard the unsaved work?", message, answers, "warning") != "discard":
            return
        self._notices.remove(_key(gone))
        try:
            remove_session(gone.file)
        except LockTaken:
            self._notify(_ALREADY_OPEN)
        except OSError:
            _log.warning("The session %s could not be removed", gone.file, exc_info=True)


def _key(gone: AbandonedSession) -> str:
    return f"session {gone.file.name}"
