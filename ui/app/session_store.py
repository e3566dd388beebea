"""The saved session: the config and the window's settings. No Tk."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from modules.config.codec import decode, encode
from modules.config.records import record_at
from modules.config.schema import Config
from modules.system.atomic import write_text
from modules.system.problem import Problem
from ui.forms.model import Document, Draft, FormModel, Source
from ui.forms.preferences import UiSettings

_log = logging.getLogger(__name__)
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class SavedSession:
    """What a session's file contains: the config with its source, the invalid entries, and the window's settings."""

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
        kept = f"It was kept as {aside}, and Darkroom starts with the defaults."
    except (OSError, StopIteration):
        kept = "It could not be moved aside; Darkroom starts with the defaults."
    return Problem("", f"The last session could not be read ({reason}). {kept}", "warning")


def _source(data: object) -> Source:
    match data:
        case {"name": str(name), "path": str(path), "kind": "built_in" | "preset" | "file" | "none" as kind}:
            return Source(name, Path(path) if path else None, kind)
        case _:
            return Source()


def _drafts(data: object, config: Config) -> dict[str, Draft]:
    """Return the invalid entries of a file by their paths, for the fields that the config has."""
    found = {}
    for entry in data if isinstance(data, list) else ():
        match entry:
            case {"path": str(path), "text": str(text), "message": str(message), "advice": str(advice)}:
                if record_at(config, path) is not None:
                    found[path] = Draft(text, Problem(path, message, advice=advice))
    return found


def _settings(data: object) -> UiSettings:
    """Return the settings of a file; an invalid value is replaced by its default."""
    known: dict[str, Any] = dict(data) if isinstance(data, dict) else {}
    while True:
        try:
            return UiSettings.model_validate(known)
        except ValidationError as error:
            known.pop(str(error.errors()[0]["loc"][0]), None)
