"""The record of another machine, and the file of all of them: no secrets, only the path of a key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from modules.system.atomic import make_folder, write_text
from modules.system.errors import DarkroomError
from modules.system.file_errors import describe_file_error
from modules.system.file_lock import LockTaken, locked_soon
from modules.system.paths import remotes_file
from trainer.remote.providers import PROVIDERS

_FORMAT = 1
_PATIENCE_SECONDS = 10.0
_NAME, _WORD, _POD = re.compile(r"\w[\w.-]{0,39}"), re.compile(r"[\w.:%@-]*"), re.compile(r"[A-Za-z0-9_-]{0,128}")
AfterRuns = Literal["", "stop", "delete"]
DEFAULT_FOLDER = "~/darkroom"


@dataclass(frozen=True, slots=True)
class Remote:
    """A machine that runs are trained on, over SSH.

    An empty `user` or `key_file` leaves both to OpenSSH: its own config, its agent. `folder` is where everything is
    there. `python` is a Python there that has all packages; without one Darkroom makes an environment of its own, with
    packages from the machine's index, or from wheels that are sent: those in the folder `wheels_dir` of this computer.
    `hub_cache_dir` is where models of Hugging Face are kept there; by default where its other programs keep them.
    With `fetches_backups` each backup is fetched when it has been written. `command_after` is run there when the last
    run has finished and its files are here. A rented one has a `provider` and the id of its `pod` there; instead of a
    command it can be stopped or deleted through them, `pod_after`.
    """

    name: str
    host: str
    port: int = 0
    user: str = ""
    key_file: str = ""
    folder: str = DEFAULT_FOLDER
    python: str = ""
    num_devices: int = 1
    price_per_hour: float = 0.0
    fetches_backups: bool = False
    command_after: str = ""
    provider: str = ""
    pod: str = ""
    pod_after: AfterRuns = ""
    wheels_dir: str = ""
    hub_cache_dir: str = ""

    @property
    def is_ended_after_runs(self) -> bool:
        """Whether a command, or its provider, ends it when its last run has finished."""
        return bool(self.command_after or self.pod_after)

    @property
    def address(self) -> str:
        """Its address for people."""
        host = self.host or f"pod {self.pod}"
        return f"{self.user}@{host}" if self.user and self.host else host


def problem_of(remote: Remote) -> str:
    """Return a sentence about the problem of a record; empty for a valid record."""
    if not remote.name:
        return "Give the machine a name."
    if not _NAME.fullmatch(remote.name):
        return "A machine's name has at most 40 letters, digits, dots and hyphens."
    if (
        remote.provider not in ("", *PROVIDERS)
        or not _POD.fullmatch(remote.pod)
        or remote.pod_after not in get_args(AfterRuns)
    ):
        return f"The provider of {remote.name} or its machine there is not known: {remote.provider} {remote.pod}."
    if (not remote.host and not remote.pod) or remote.host.startswith("-") or not _WORD.fullmatch(remote.host):
        return f"{remote.host!r} is not the name or the address of a host."
    if remote.user.startswith("-") or not _WORD.fullmatch(remote.user):
        return f"{remote.user!r} is not the name of a user."
    if not 0 <= remote.port <= 65535:
        return f"The port {remote.port} is out of range: from 1 to 65535."
    if not remote.folder.strip():
        return f"No folder is set for {remote.name}. Choose one there, such as {DEFAULT_FOLDER}."
    if remote.num_devices < 1 or remote.price_per_hour < 0:
        return "The number of devices is at least 1, and the price at least 0."
    return ""


class RemotesFile:
    """All records on disk. A missing file has none."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or remotes_file()

    def read(self) -> tuple[Remote, ...]:
        """Return all records, by name. Raises DarkroomError if the file cannot be read; it is never overwritten."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["darkroom_remotes"] != _FORMAT:
                raise ValueError("it is from a newer version")
            return tuple(sorted(map(_remote, data["remotes"]), key=lambda remote: remote.name))
        except FileNotFoundError:
            return ()
        except OSError as error:
            message, advice = describe_file_error(error)
            raise DarkroomError(f"The list of machines cannot be read. {message}", advice=advice) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            message = f"The list of machines in {self.path} cannot be read."
            raise DarkroomError(message, advice="Rename or remove the file, and add them again.") from error

    def find(self, name: str) -> Remote:
        """Return a record. Raises DarkroomError for an unknown name."""
        known = self.read()
        match = next((remote for remote in known if remote.name == name), None)
        if match is None:
            names = ", ".join(remote.name for remote in known)
            advice = f"These are known: {names}." if names else "Add it with: remote add NAME --host HOST"
            raise DarkroomError(f"There is no machine {name!r}.", advice=advice)
        return match

    def current(self, remote: Remote) -> Remote:
        """Return the newest record of a machine, which may change during a long run; else the given one."""
        try:
            return next((other for other in self.read() if other.name == remote.name), remote)
        except DarkroomError:
            return remote

    def add(self, remote: Remote) -> None:
        """Add a record, or replace the one with its name, unless that is another rented machine, which costs.

        Raises DarkroomError for an invalid record or a name that is taken, and OSError.
        """
        if problem := problem_of(remote):
            raise DarkroomError(problem)
        with self._alone():
            known = self.read()
            if any(other.name == remote.name and other.pod not in ("", remote.pod) for other in known):
                raise DarkroomError(
                    f"{remote.name} is the name of a rented machine, which would cost without being in the list.",
                    advice=f"Choose another name, or delete that machine first: remote end {remote.name} --delete.",
                )
            self._write((*(other for other in known if other.name != remote.name), remote))

    def remove(self, name: str) -> None:
        """Remove a record. Raises DarkroomError for an unknown name, and OSError."""
        with self._alone():
            self.find(name)
            self._write(tuple(remote for remote in self.read() if remote.name != name))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let no other program change the list meanwhile: a rented machine that is lost from it costs unseen."""
        make_folder(self.path.parent)
        try:
            lock = locked_soon(self.path.with_name(f"{self.path.name}.lock"), patience_seconds=_PATIENCE_SECONDS)
        except LockTaken:
            message = f"The list of machines in {self.path} is in use by another program."
            raise DarkroomError(message, advice="Try again in a moment.") from None
        try:
            yield
        finally:
            lock.release()

    def _write(self, remotes: tuple[Remote, ...]) -> None:
        content = {"darkroom_remotes": _FORMAT, "remotes": [asdict(remote) for remote in remotes]}
        write_text(self.path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _remote(data: Mapping[str, Any]) -> Remote:
    remote = Remote(**{field.name: data[field.name] for field in fields(Remote) if field.name in data})
    if problem_of(remote):
        raise ValueError(remote.name)
    return remote
