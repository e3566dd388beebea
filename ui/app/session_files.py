"""The files of the windows' sessions. Each open window has its own file, which it locks.

The files lie next to each other: `session.json`, `session-2.json` and so on. A window takes over the newest one that no
running window has; what remains in the others is offered (`abandoned_sessions.py`).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from modules.config.codec import decode, encode
from modules.config.records import record_at
from modules.config.schema import Config
from modules.system.atomic import write_text
from modules.system.file_lock import FileLock, LockTaken
from modules.system.problem import Problem
from ui.forms.model import Document, Draft, FormModel, Source
from ui.forms.preferences import UiSettings

_log = logging.getLogger(__name__)
_NUMBERED = re.compile(r"-\d{1,4}")  # not the number of a file that was moved aside


@dataclass(frozen=True, slots=True)
class HeldSession:
    """The session of this window: its file, the lock, and what it starts with."""

    file: Path
    lock: FileLock | None  # None if the folder cannot be written to or does not support locks
    last: Session

    def release(self) -> None:
        """Leave the file to the next window."""
        if self.lock is not None:
            self.lock.release()


def take_session(first: Path) -> HeldSession:
    """Take over the newest session that no running window has. `first` is the file of a first window.

    If all are in use, the window starts a new file with the last saved version of the newest config. The window's
    settings are always the newest.
    """
    with suppress(OSError):
        first.parent.mkdir(parents=True, exist_ok=True)
    files = list_files(first)
    numbered = (first.with_stem(f"{first.stem}-{number}") for number in count(2))
    for file in chain(files, (name for name in chain((first,), numbered) if name not in files)):
        try:
            lock = FileLock(lock_of(file))
        except LockTaken:
            continue
        except OSError:
            _log.warning("The session %s could not be locked", file, exc_info=True)
            return HeldSession(file, None, load_session(file))
        return HeldSession(file, lock, _choose_session(file, files))
    raise AssertionError("there is always another name")


def lock_of(file: Path) -> Path:
    """Return the lock file of a session."""
    return file.with_suffix(".lock")


def _choose_session(file: Path, files: Sequence[Path]) -> Session:
    """Return the session that a window starts with once it has locked a file."""
    session = load_session(file)
    newest = _read_or_none(files[0]) if files and files[0] != file else None
    if newest is None:
        return session
    form = session.form
    if form is None and file not in files:  # the first start of a further window
        now = newest.document
        form = FormModel(now.baseline, source=now.source)
    settings = session.settings  # what the other window has left is its own
    left = {"left_run": settings.left_run, "left_queue": settings.left_queue}
    return Session(newest.settings.model_copy(update=left), form, session.problems)


def _read_or_none(file: Path) -> SavedSession | None:
    try:
        return read_session(file)
    except (OSError, ValueError, RecursionError):
        return None


def list_files(first: Path) -> tuple[Path, ...]:
    """Return the files of sessions, the newest first."""
    dated = []
    for file in first.parent.glob(f"{first.stem}*{first.suffix}"):
        extra = file.stem.removeprefix(first.stem)
        if not extra or _NUMBERED.fullmatch(extra):
            with suppress(OSError):
                dated.append((file.stat().st_mtime_ns, file))
    return tuple(file for _, file in sorted(dated, reverse=True))


_FORMAT = 1


class SavedSession(NamedTuple):
    """The content of a session's file: the config with its source, the invalid entries, and the window's settings."""

    document: Document
    drafts: Mapping[str, Draft]
    settings: UiSettings
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Session:
    """A saved session: the settings, the config with its source, and problems of the file."""

    settings: UiSettings
    form: FormModel | None = None
    problems: tuple[Problem, ...] = ()


def load_session(file: Path) -> Session:
    """Return the last session. An unreadable file is moved aside and reported, and the defaults are used."""
    try:
        saved = read_session(file)
    except FileNotFoundError:
        return Session(UiSettings())
    except (OSError, ValueError, RecursionError) as error:
        return Session(UiSettings(), problems=(_set_aside(file, str(error)),))
    now = saved.document
    form = FormModel(now.config, baseline=now.baseline, source=now.source, drafts=saved.drafts)
    return Session(saved.settings, form, saved.problems)


def read_session(file: Path) -> SavedSession:
    """Return the content of a session's file. Raises OSError, ValueError or RecursionError if it has none."""
    data = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or not isinstance(data.get("config"), dict):
        raise ValueError("it does not contain a session")
    loaded, baseline = decode(data["config"]), decode(data.get("baseline", data["config"]))
    document = Document(loaded.config, baseline.config, _source(data.get("source")))
    return SavedSession(
        document, _drafts(data.get("invalid"), document.config), _settings(data.get("ui")), tuple(loaded.problems)
    )


def save_session(
    file: Path, document: Document, settings: UiSettings, drafts: Mapping[str, Draft] | None = None
) -> bool:
    """Write the session atomically; return whether it was. A failure is only logged: a full disk must not keep the
    window open.
    """
    source = document.source
    data = {
        "darkroom_session": _FORMAT,
        "source": {"name": source.name, "path": str(source.path or ""), "kind": source.kind},
        "ui": settings.model_dump(mode="json"),
        "config": encode(document.config),
        "baseline": encode(document.baseline),
        "invalid": [
            {"path": path, "text": draft.text, "message": draft.problem.message, "advice": draft.problem.advice}
            for path, draft in (drafts or {}).items()
        ],
    }
    try:
        write_text(file, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    except OSError:
        _log.warning("The session could not be saved to %s", file, exc_info=True)
        return False
    return True


def _set_aside(file: Path, reason: str) -> Problem:
    """Rename an unreadable file (or a folder in its place) to a free name; return the warning."""
    stamp = f"{file.stem}-{datetime.now():%Y%m%d-%H%M%S}"
    names = (file.with_name(f"{stamp}{number}{file.suffix}.bad") for number in ("", *(f"-{n}" for n in range(2, 100))))
    try:
        aside = next(name for name in names if not name.exists())
        file.rename(aside)
        note = f"It was kept as {aside}, and Darkroom starts with the defaults."
    except (OSError, StopIteration):
        note = "It could not be moved aside; Darkroom starts with the defaults."
    return Problem("", f"The last session could not be read ({reason}). {note}", "warning")


def _source(data: object) -> Source:
    match data:
        case {"name": str(name), "path": str(path), "kind": "built_in" | "preset" | "file" | "none" as kind}:
            return Source(name, Path(path) if path else None, kind)
        case _:
            return Source()


def _drafts(data: object, config: Config) -> dict[str, Draft]:
    """Return the invalid entries of a file by their paths, for the fields that the config has."""
    drafts = {}
    for entry in data if isinstance(data, list) else ():
        match entry:
            case {"path": str(path), "text": str(text), "message": str(message), "advice": str(advice)}:
                if record_at(config, path) is not None:
                    drafts[path] = Draft(text, Problem(path, message, advice=advice))
    return drafts


def _settings(data: object) -> UiSettings:
    """Return the settings of a file; an invalid value is replaced by its default."""
    values: dict[str, Any] = dict(data) if isinstance(data, dict) else {}
    while True:
        try:
            return UiSettings.model_validate(values)
        except ValidationError as error:
            values.pop(str(error.errors()[0]["loc"][0]), None)
