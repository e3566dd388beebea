"""The unsaved work of windows that are gone, which a window offers once it is drawn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from modules.config.schema import Config
from modules.system.file_lock import FileLock, LockTaken, living_holder
from ui.app.session_files import HeldSession, list_files, lock_of, read_session
from ui.app.session_saving import SessionSaver
from ui.forms.changes import describe_unsaved
from ui.forms.model import Document, Draft
from ui.loop.background import Background
from ui.loop.interaction import Answer, Interaction
from ui.widgets.notices import Notice, Notices, Reply

_log = logging.getLogger(__name__)
_ALREADY_OPEN = "Another window has opened it."


@dataclass(frozen=True, slots=True)
class AbandonedSession:
    """The unsaved work of a window that is gone, and when it was saved last."""

    file: Path
    saved: datetime
    document: Document
    drafts: Mapping[str, Draft]

    @property
    def summary(self) -> str:
        """The name of its config, and how much of it is unsaved."""
        return describe_unsaved(self.document, self.drafts)


def find_abandoned_sessions(first: Path, own_file: Path, opening_document: Document) -> tuple[AbandonedSession, ...]:
    """Return the unsaved work of windows that are gone, the newest first; sessions without any are removed.

    `opening_document` is what this window started with: the same work is not returned again.
    """
    sessions = []
    for file in list_files(first):
        if file == own_file or living_holder(lock_of(file)) is not None:
            continue
        session = read_abandoned(file)
        if session is None:
            continue
        if has_unsaved_work(session.document, session.drafts) and session.document != opening_document:
            sessions.append(session)
        else:
            with suppress(OSError, LockTaken):
                remove_session(file)
    return tuple(sessions)


def read_abandoned(file: Path) -> AbandonedSession | None:
    """Return the work in a session's file; None if it has none that can be read."""
    try:
        saved, when = read_session(file), datetime.fromtimestamp(file.stat().st_mtime)
    except (OSError, ValueError, RecursionError):
        return None
    return AbandonedSession(file, when, saved.document, saved.drafts)


def remove_session(file: Path) -> None:
    """Remove the file of a window that is gone. Raises LockTaken if a window has taken it over, and OSError."""
    lock = FileLock(lock_of(file))
    try:
        file.unlink(missing_ok=True)
    finally:
        lock.release()


def has_unsaved_work(document: Document, drafts: Mapping[str, Draft]) -> bool:
    """Return whether something in a session is in no other file."""
    if drafts or document.is_changed:
        return True
    path = document.source.path
    return (path is None or not path.exists()) and document.config != Config()


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
