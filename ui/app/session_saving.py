"""Saving the session while the user works, and offering what windows that are gone have left unsaved."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from modules.system.file_lock import FileLock, LockTaken
from ui.app.session_files import (
    GoneSession,
    HeldSession,
    gone_sessions,
    lock_of,
    read_gone,
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
        self._form.changed.subscribe(self._follow_edit)

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

    def _follow_edit(self) -> None:
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


_log = logging.getLogger(__name__)
_ELSEWHERE = "Another window has opened it."


class SessionOffers:
    """A notice for each session with unsaved work whose window is gone."""

    def __init__(
        self,
        own: HeldSession,
        notices: Notices,
        interaction: Interaction,
        background: Background,
        saver: SessionSaver,
        *,
        open_session: Callable[[Document, Mapping[str, Draft]], None],
        notify: Callable[[str], None],
    ) -> None:
        self._own = own.file
        self._notices = notices
        self._interaction = interaction
        self._background = background
        self._saver = saver
        self._open_session = open_session
        self._notify = notify

    def look(self, first: Path, opened: Document) -> None:
        """Look for such sessions next to the first window's file, once: when the window opens."""
        self._background.run(lambda: gone_sessions(first, self._own, opened), self._offer)

    def _offer(self, found: Sequence[GoneSession]) -> None:
        for gone in reversed(found):  # the newest one is shown first
            text = f"Another window ended with unsaved work: {gone.words}, from {gone.saved:%d %B, %H:%M}."
            replies = (
                Reply("Open it here", partial(self.open, gone)),
                Reply("Discard…", partial(self.discard, gone), stays=True),
            )
            self._notices.show(Notice(_key(gone), text, replies, dismiss_label="Later"))

    def open(self, gone: GoneSession) -> None:
        """Open the work in this window; its file is removed once this window's session contains it."""
        try:
            lock = FileLock(lock_of(gone.file))
        except (LockTaken, OSError):
            self._notify(_ELSEWHERE)
            return
        current = read_gone(gone.file)
        if current is None:
            lock.release()
            self._notify(_ELSEWHERE)
            return

        def saved(is_saved: bool) -> None:
            if is_saved:
                gone.file.unlink(missing_ok=True)
            lock.release()

        self._open_session(current.document, current.drafts)
        self._saver.save_soon(saved)

    def discard(self, gone: GoneSession) -> None:
        """Remove the work, if the user confirms it."""
        answers = (Answer("discard", "Discard"), Answer("keep", "Keep it", is_default=True))
        message = f"{gone.words[0].upper()}{gone.words[1:]}, from {gone.saved:%d %B, %H:%M}. This cannot be undone."
        if self._interaction.choose("Discard the unsaved work?", message, answers, "warning") != "discard":
            return
        self._notices.remove(_key(gone))
        try:
            remove_session(gone.file)
        except LockTaken:
            self._notify(_ELSEWHERE)
        except OSError:
            _log.warning("The session %s could not be removed", gone.file, exc_info=True)


def _key(gone: GoneSession) -> str:
    return f"session {gone.file.name}"
