"""Reading and writing the secrets file: private to its owner from the first byte, and reading never raises."""

from __future__ import annotations

import json
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from modules.system.atomic import atomic_file
from modules.system.errors import DarkroomError
from modules.system.paths import secrets_file
from modules.system.problem import Problem
from modules.system.regular_files import json_object_in
from modules.system.secrets import (
    WHERE_TO_ENTER,
    Secrets,
    from_json,
    guard,
    secret,
    set_names,
    to_json,
    with_secret,
)

_OWNER_ONLY = 0o600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class LoadedSecrets:
    """The secrets as they were read, and any problems with their file; no message contains a value."""

    secrets: Secrets
    problems: tuple[Problem, ...] = ()


def load_secrets(file: Path | None = None) -> LoadedSecrets:
    """Read the secrets and redact them from logs and events from now on. Never raises.

    A file that is not a JSON object is renamed to `.bad` and reported; a missing file means no secrets.
    """
    file = file or secrets_file()
    loaded = _read(file)
    guard(loaded.secrets)
    return replace(loaded, problems=(*loaded.problems, *_open_to_others(file)))


def save_secrets(secrets: Secrets, file: Path | None = None) -> None:
    """Write the secrets atomically, with mode 0600 from the first byte on. Raises OSError."""
    file = file or secrets_file()
    guard(secrets)
    content = (json.dumps(to_json(secrets), indent=2) + "\n").encode("ascii")
    with atomic_file(file, follows_link=True, mode=_OWNER_ONLY) as temporary:
        temporary.write_bytes(content)


def import_secrets(file: Path, into: Secrets) -> tuple[Secrets, tuple[str, ...]]:
    """Return `into` with the values set in an OneTrainer `secrets.json`, or in the `secrets` of an old OneTrainer
    config, and the names of the imported values. Raises DarkroomError where the file cannot be read or contains none.
    """
    try:
        data = json_object_in(file.read_bytes()) or {}
    except OSError as error:
        raise DarkroomError(f"{file} cannot be read: {error.strerror}.", advice="Check its name.") from error
    inner = data.get("secrets")
    loaded, _ = from_json(inner if isinstance(inner, dict) else data)
    guard(loaded)
    # OneTrainer always writes the user "root", even if it was never set.
    names = tuple(n for n in set_names(loaded) if not (n == "cloud.user" and loaded.cloud.user == "root"))
    if not names:
        advice = "Choose OneTrainer's secrets.json, or an old config that contains a 'secrets' object."
        raise DarkroomError(f"{file} contains no tokens or passwords.", advice=advice)
    for name in (*names, "cloud.user") if loaded.cloud.user else names:
        into = with_secret(into, name, secret(loaded, name))
    return into, names


def _read(file: Path) -> LoadedSecrets:
    try:
        data = json_object_in(file.read_bytes())
    except FileNotFoundError:
        return LoadedSecrets(Secrets())
    except OSError as error:
        message = f"The file of tokens and passwords, {file}, cannot be read ({error.strerror})."
        return LoadedSecrets(
            Secrets(), (Problem("", message, "warning", "Make it readable; until then none are used."),)
        )
    if data is None:
        return LoadedSecrets(Secrets(), (_set_aside(file),))
    secrets, odd = from_json(data)
    if not odd:
        return LoadedSecrets(secrets)
    message = f"Some entries in {file} are not valid and are not used: {', '.join(odd)}."
    return LoadedSecrets(secrets, (Problem("", message, "warning", "Enter them again."),))


def _set_aside(file: Path) -> Problem:
    """Rename an unreadable file to the first free `.bad` name, with mode 0600 as it may contain a token."""
    names = (file.with_name(f"{file.name}.bad{number}") for number in ("", *range(2, 1000)))
    aside = next((name for name in names if not name.exists()), file.with_name(f"{file.name}.bad"))
    try:
        file.chmod(_OWNER_ONLY)
        file.rename(aside)
        kept = f"It was renamed to {aside}."
    except OSError:
        kept = "It could not be renamed."
    message = f"The file of tokens and passwords, {file}, is not a JSON object and was not used. {kept}"
    return Problem("", message, "warning", "Enter them again, or fix the file and restore its name.")


def _open_to_others(file: Path) -> tuple[Problem, ...]:
    """Return a warning where other users of this machine can read the file. On Windows the folder is private."""
    if sys.platform == "win32":
        return ()
    with suppress(OSError):
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & _OTHERS:
            message = f"Other users of this machine can read your tokens and passwords: {file} has mode {mode:03o}."
            return (Problem("", message, "warning", f"Run chmod 600 on it, or save them again ({WHERE_TO_ENTER})."),)
    return ()
