"""Which file a window's session is in. Each open window has one of its own, which it locks. No Tk.

The files lie beside each other: `session.json`, `session-2.json` and so on. A window takes over the newest one that no
running window has; what remains in the others is offered (`session_offers.py`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, count
from pathlib import Path

from modules.config.schema import Config
from modules.system.file_lock import FileLock, LockTaken, living_holder
from ui.app.session_store import SavedSession, Session, load_session, read_session
from ui.forms.changes import unsaved_words
from ui.forms.model import Document, Draft, FormModel

_log = logging.getLogger(__name__)
_NUMBERED = re.compile(r"-\d{1,4}")  # not that of a file that was moved aside


@dataclass(frozen=True, slots=True)
class OwnSession:
    """The session of this window: its file, the lock, and what it starts with."""

    file: Path
    lock: FileLock | None  # None where the folder cannot be written or has no locks
    last: Session

    def release(self) -> None:
        """Leave the file to the next window."""
        if self.lock is not None:
            self.lock.release()


@dataclass(frozen=True, slots=True)
class GoneSession:
    """The unsaved work of a window that is gone, and when it was saved last."""

    file: Path
    saved: datetime
    document: Document
    drafts: Mapping[str, Draft]

    @property
    def words(self) -> str:
        """The name of its config, and how much of it is unsaved."""
        return unsaved_words(self.document, self.drafts)


def take_session(first: Path) -> OwnSession:
    """Take over the newest session that no running window has. `first` is the file of a first window.

    Where all are in use, the window starts a new file with the newest config, as that was last saved. The window's
    settings are always the newest ones.
    """
    with suppress(OSError):
        first.parent.mkdir(parents=True, exist_ok=True)
    files = _files(first)
    numbered = (first.with_stem(f"{first.stem}-{number}") for number in count(2))
    for file in chain(files, (name for name in chain((first,), numbered) if name not in files)):
        try:
            lock = FileLock(lock_of(file))
        except LockTaken:
            continue
        except OSError:
            _log.warning("The session %s could not be locked", file, exc_info=True)
            return OwnSession(file, None, load_session(file))
        return OwnSession(file, lock, _first_state(file, files))
    raise AssertionError("there is always another name")


def gone_sessions(first: Path, own: Path, opened: Document) -> tuple[GoneSession, ...]:
    """Return the unsaved work of windows that are gone, the newest first; sessions without any are removed.

    `opened` is what this window started with: the same work is not returned again.
    """
    found = []
    for file in _files(first):
        if file == own or living_holder(lock_of(file)) is not None:
            continue
        session = read_gone(file)
        if session is None:
            continue
        if has_unsaved_work(session.document, session.drafts) and session.document != opened:
            found.append(session)
        else:
            with suppress(OSError, LockTaken):
                remove_session(file)
    return tuple(found)


def read_gone(file: Path) -> GoneSession | None:
    """Return the work in a session's file; None if it has none that can be read."""
    try:
        saved, when = read_session(file), datetime.fromtimestamp(file.stat().st_mtime)
    except (OSError, ValueError, RecursionError):
        return None
    return GoneSession(file, when, saved.document, saved.drafts)


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


def lock_of(file: Path) -> Path:
    """Return the lock file of a session."""
    return file.with_suffix(".lock")


def _first_state(file: Path, files: Sequence[Path]) -> Session:
    """Return what a window starts with that has taken a file."""
    own = load_session(file)
    newest = _read(files[0]) if files and files[0] != file else None
    if newest is None:
        return own
    form = own.form
    if form is None and file not in files:  # the first start of a further window
        now = newest.document
        form = FormModel(now.baseline, source=now.source)
    return Session(newest.settings, form, own.problems)


def _read(file: Path) -> SavedSession | None:
    try:
        return read_session(file)
    except (OSError, ValueError, RecursionError):
        return None


def _files(first: Path) -> tuple[Path, ...]:
    """Return the files of sessions, the newest first."""
    found = []
    for file in first.parent.glob(f"{first.stem}*{first.suffix}"):
        extra = file.stem.removeprefix(first.stem)
        if not extra or _NUMBERED.fullmatch(extra):
            with suppress(OSError):
                found.append((file.stat().st_mtime_ns, file))
    return tuple(file for _, file in sorted(found, reverse=True))
