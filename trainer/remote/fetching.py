"""Files of a run that are fetched from another machine: each whole, and with the digest that it has there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from modules.system.atomic import make_folder, remove_folder, remove_quietly, write_text
from modules.system.errors import DarkroomError
from trainer.remote.agent import digest_of
from trainer.remote.connection import Connection, GoneError
from trainer.run_folder.backup import MANIFEST
from trainer.run_folder.choices import ANSWER_FILE, REQUEST_FILE, Answer, all_requests, answer_of, choices_dir, withdraw
from trainer.run_folder.destination import DESTINATION_FILE, may_write
from trainer.run_folder.elsewhere import LINK_FILE
from trainer.run_folder.event_log import EVENTS_FILE
from trainer.run_folder.inbox import INBOX_FILE
from trainer.run_folder.result import copy_model, results_of, sha256_of
from trainer.run_folder.run_dir import RUN_FILE
from trainer.run_folder.run_lock import LOCK_FILE

_REQUESTS = PurePosixPath("choices/open")
_SECONDS = 30.0


class Answers:
    """A person's answers to the choices of a run that its machine knows: its requests come with its files.

    The answers here count. They are not fetched, so that one that was taken back does not return.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._known: dict[str, Answer | None] = {}

    def pass_on(self, connection: Connection, run_there: str) -> None:
        """Send the new answers, and take back those that were taken back here. Raises ConnectionLostError.

        The answer to a request that is new to this follower may have been taken back while the run had none.
        """
        taken_back = []
        for request in all_requests(self._run_dir):
            given = answer_of(request)
            if request.name in self._known and given == self._known[request.name]:
                continue
            there = f"{run_there}/{_REQUESTS / request.name / ANSWER_FILE}"
            if given is None:
                taken_back.append(there)
            else:
                connection.call("write", (request.folder / ANSWER_FILE).read_bytes(), name=there)
            self._known[request.name] = given
        if taken_back:
            connection.call("command", arguments=["rm", "-f", "--", *taken_back], cwd=run_there, seconds=_SECONDS)


def is_answer(name: str) -> bool:
    """Return whether a file of a run's folder, by its name there, is the answer to a request."""
    path = PurePosixPath(name)
    return path.name == ANSWER_FILE and path.parent.parent == _REQUESTS


def remove_withdrawn(run_dir: Path, names_there: Collection[str]) -> None:
    """Remove the requests that the run has withdrawn: `names_there` are the files of its folder there."""
    if not choices_dir(run_dir).is_dir():
        return
    there = map(PurePosixPath, names_there)
    open_there = {p.parent.name for p in there if p.name == REQUEST_FILE and p.parent.parent == _REQUESTS}
    for request in all_requests(run_dir):
        if request.name not in open_there:
            withdraw(request)


_PART_BYTES = 4 << 20
_TEXTS = frozenset({".json", ".jsonl", ".txt", ".csv"})
_LARGE = ("backup", "save")
_LOCAL_FILES = (EVENTS_FILE, INBOX_FILE, LOCK_FILE, RUN_FILE, DESTINATION_FILE, LINK_FILE, "config.json", "launch.json")
_RESULT = ".result"

Translate = Callable[[str], str]


class RunFiles:
    """The files of a run in its folder on this machine and on the other one."""

    def __init__(
        self,
        connection: Connection,
        there: str,
        run_dir: Path,
        translate: Translate,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection, self._there, self._run_dir, self._translate = connection, there, run_dir, translate
        self._meanwhile = meanwhile  # called between the parts of a large file
        self._have: dict[str, tuple[int, int]] = {}

    def sync(self, *, with_large: Collection[str] = ()) -> None:
        """Fetch new and changed files; the folders "backup" and "save" only if they are in `with_large`.

        Raises DarkroomError, ConnectionLostError, OSError.
        """
        without = [name for name in _LARGE if name not in with_large]
        files = self._files(without=without)
        remove_withdrawn(self._run_dir, [name for name, *_ in files])
        for name, size, mtime_ns in files:
            here = self._run_dir / checked_name(name)
            is_unfinished = any(part.startswith(".") for part in PurePosixPath(name).parts)
            is_ours = _is_local(name) or is_answer(name) or is_unfinished
            if is_ours or self._have.get(name) == (size, mtime_ns) or _is_equal(here, size, mtime_ns):
                continue
            with suppress(GoneError):  # the run has renamed or removed it since
                if self._fetch(f"{self._there}/{name}", size, mtime_ns, here):
                    self._have[name] = (size, mtime_ns)
        for manifest in (self._run_dir / "backup").glob(f"*/{MANIFEST}") if "backup" in with_large else ():
            _sign_again(manifest)

    def remove_old_backups(self) -> None:
        """Remove the backups that the machine has removed since they were fetched: as many are kept here as there.

        Raises ConnectionLostError, DarkroomError, OSError.
        """
        names = [PurePosixPath(name).parts for name, *_ in self._files(without=("save",))]
        there = {parts[1] for parts in names if parts[0] == "backup"}
        for backup in (self._run_dir / "backup").glob("*/"):
            if there and backup.name not in there:
                remove_folder(backup)

    def fetch_result(self, there: str, destination: Path) -> Path | None:
        """Fetch the result, and put it in its place; return where it is then, or None if it does not exist yet.

        Only the files of a model with the name of `destination` are put anywhere, whatever else is there. A place that
        is taken by another file meanwhile, or cannot be written, is left as it is: then the result stays in the run's
        folder.
        """
        if any(result.path == destination and result.is_unchanged() for result in results_of(self._run_dir)):
            return destination  # an earlier connection has fetched it
        files = self._connection.call("files", folder=there, without=[])[0]
        kept = self._run_dir / _RESULT
        for name, size, mtime_ns in files:
            here = kept / checked_name(name)
            if not _is_equal(here, size, mtime_ns):
                self._fetch(f"{there}/{name}", size, mtime_ns, here, is_result=True)
        model, place = kept / destination.name, self._run_dir / "save" / destination.name
        if not files or not model.exists():
            return None
        if may_write(destination, self._run_dir):
            with suppress(OSError):
                copy_model(model, destination)
                place = destination
        if place != destination:
            copy_model(model, place)
        remove_quietly(kept)
        return place

    def _files(self, *, without: Sequence[str]) -> list[tuple[str, int, int]]:
        return list(self._connection.call("files", folder=self._there, without=list(without))[0])

    def _fetch(self, there: str, size: int, mtime_ns: int, here: Path, *, is_result: bool = False) -> bool:
        """Fetch the first `size` bytes of a file, from where an earlier connection ended; return whether they are here.

        False if the file is being rewritten there; for a result, which is complete, that raises DarkroomError.
        """
        make_folder(here.parent)
        part = here.with_name(f".{here.name}.{mtime_ns:x}.{size:x}")
        for other in here.parent.iterdir():
            if other.name.startswith(f".{here.name}.") and other != part:
                remove_quietly(other)  # of another version of it
        try:
            self._read(there, size, part)
            digest = self._connection.call("digest", path=there, size=size)[0]
        except GoneError:
            part.unlink()
            raise
        if digest_of(part) != digest:
            part.unlink()
            if not is_result:
                return False
            raise DarkroomError(f"{there} changed while it was fetched.", advice="Try it again: remote fetch.")
        if here.suffix in _TEXTS and not is_result:
            with suppress(UnicodeDecodeError):
                part.write_text(self._translate(part.read_text(encoding="utf-8")), encoding="utf-8")
        os.utime(part, ns=(mtime_ns, mtime_ns))
        part.replace(here)
        return True

    def _read(self, there: str, size: int, part: Path) -> None:
        """Append the missing bytes of a file to its part here."""
        offset = part.stat().st_size if part.exists() else 0
        with part.open("ab") as file:
            while offset < size:
                chunk = min(_PART_BYTES, size - offset)
                content = self._connection.call("read", path=there, offset=offset, size=chunk)[1]
                if not content:
                    break
                file.write(content)
                offset += len(content)
                self._meanwhile()


def _is_local(name: str) -> bool:
    """Return whether a file of a run's folder is written here alone, or would make a folder of its name.

    Some systems ignore case, and dots at the end.
    """
    return name.partition("/")[0].casefold().rstrip(". ") in _LOCAL_FILES


def checked_name(name: str) -> str:
    """Return a name of a file from another machine; empty for the only file of a result.

    Raises DarkroomError if it leads out of its folder, or is another spelling of a name, such as "./remote.json".
    """
    path = PurePosixPath(name)
    is_plain = str(path) == name or not name
    if not is_plain or path.is_absolute() or ".." in path.parts or set(name) & set("\\:\0"):
        raise DarkroomError(f"The other machine has a file with a name that is not valid here: {name!r}.")
    return name


def _is_equal(here: Path, size: int, mtime_ns: int) -> bool:
    """Return whether a file was fetched earlier. Texts have another size here, with other paths in them."""
    try:
        status = here.stat()
    except OSError:
        return False
    return status.st_mtime_ns == mtime_ns and (status.st_size == size or here.suffix in _TEXTS)


def _sign_again(manifest: Path) -> None:
    """Write the digests of the texts of a fetched backup, which have the paths of this machine now."""
    content = json.loads(manifest.read_text(encoding="utf-8"))
    for name, facts in content["files"].items():
        file = manifest.parent / checked_name(name)
        if file.suffix in _TEXTS and file.is_file():
            facts |= {"bytes": file.stat().st_size, "sha256": sha256_of(file)}
    status = manifest.stat()
    write_text(manifest, json.dumps(content, indent=1))
    os.utime(manifest, ns=(status.st_mtime_ns, status.st_mtime_ns))
