"""Leftovers of killed programs next to the files that they were writing: recognized by name, and removed.

Whatever is written atomically has a temporary name first, which names its writer: `.<name>.writing-<machine>-<process>-
<random>`, and with "old-" after the mark for a folder that is moved aside while another takes its place. Once the
writer has ended, a temporary file is not needed. A folder that was moved aside gets its name back if nothing has it.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import shutil
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import uuid4

TEMPORARY_MARK = ".writing-"
_OLD = "old-"
_NAME = re.compile(rf"\.(.+){re.escape(TEMPORARY_MARK)}(old-)?(?:([0-9a-f]{{8}})-(\d+)-)?[0-9a-f]{{8}}", re.DOTALL)
_MAX_NAME_BYTES = 255 - len(f".{TEMPORARY_MARK}{_OLD}12345678-1234567890-12345678")  # of a name on all usual systems
_ABANDONED_AFTER_SECONDS = 24 * 3600  # nothing takes that long without a change on the disk

logger = logging.getLogger("darkroom.files")


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file or folder that a killed program left: its path, the name it was to have, and its bytes.

    `is_put_back`: it was moved aside and has its name again; the others were removed.
    """

    path: Path
    name: str
    num_bytes: int
    is_put_back: bool = False

    @property
    def sentence(self) -> str:
        """A sentence about what was done with it."""
        if self.is_put_back:
            return f"{self.name} in {self.path.parent} was restored: a program had ended while it replaced it."
        return (
            f"{self.path} ({self.num_bytes / 1e6:,.1f} MB) was removed: a program had ended while it wrote {self.name}."
        )


def temporary_path(destination: Path, *, is_old: bool = False) -> Path:
    """Return a free temporary path next to a destination; with `is_old` for its earlier content."""
    mark = f"{TEMPORARY_MARK}{_OLD if is_old else ''}{_machine()}-{os.getpid()}-{uuid4().hex[:8]}"
    return destination.with_name(f".{_shorten(destination.name)}{mark}")


def sweep(folder: Path, *, is_recursive: bool = False, are_writers_gone: bool = False) -> list[Leftover]:
    """Remove what killed programs left in a folder, put back what they had moved aside, and return and log it.

    `are_writers_gone` means that the caller has the folder to itself: no other program is writing in it. Raises
    nothing: what cannot be removed stays for the next time.
    """
    done = []
    for path in list(_temporary_in(folder, is_recursive=is_recursive)):
        with suppress(OSError):
            if are_writers_gone or _is_abandoned(path):
                done.append(_settle(path))
    for leftover in done:
        logger.warning("%s", leftover.sentence)
    return done


@cache
def sweep_once(folder: Path) -> None:
    """Sweep a folder the first time this program writes there: a folder may have a hundred thousand files."""
    sweep(folder)


def put_back(destination: Path) -> None:
    """Give a folder its name again if a program ended between moving it aside and putting a new one there.

    For readers, where the destination does not exist. Raises nothing.
    """
    with suppress(OSError, ValueError):
        for path in list(_temporary_in(destination.parent, is_recursive=False)):
            if _is_old_of(path, destination.name) and _is_abandoned(path) and not destination.exists():
                logger.warning("%s", _settle(path).sentence)


def _settle(path: Path) -> Leftover:
    """Put a leftover back, or remove it. Raises OSError."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, path
    name, is_old = match[1], match[2] is not None
    destination = path.with_name(name)
    if is_old and path.is_dir() and not os.path.lexists(destination):
        path.rename(destination)
        return Leftover(path, name, 0, is_put_back=True)
    num_bytes = sum(status.st_size for status in _stats(path))
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    return Leftover(path, name, num_bytes)


def _temporary_in(folder: Path, *, is_recursive: bool) -> Iterator[Path]:
    """Yield the paths with a temporary name in a folder, not their contents."""
    for place, folders, files in os.walk(folder):
        marked = [n for n in (*folders, *files) if TEMPORARY_MARK in n and _NAME.fullmatch(n)]
        yield from (Path(place) / name for name in marked)
        folders[:] = [n for n in folders if n not in marked] if is_recursive else []


def _is_old_of(path: Path, name: str) -> bool:
    match = _NAME.fullmatch(path.name)
    return match is not None and match[2] is not None and match[1] == name


def _is_abandoned(path: Path) -> bool:
    """Return whether the writer of a temporary file has ended; for one of another machine, by its age."""
    match = _NAME.fullmatch(path.name)
    if match is not None and match[3] == _machine() and not _is_running(int(match[4])):
        return True
    newest = max((status.st_mtime for status in _stats(path)), default=time.time())
    return time.time() - newest > _ABANDONED_AFTER_SECONDS


def _stats(path: Path) -> Iterable[os.stat_result]:
    """Yield the status of a file, or of a folder and all in it; what disappears meanwhile is left out."""
    for entry in (path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else ())):
        with suppress(OSError):
            yield entry.stat(follow_symlinks=False)


def _is_running(process: int) -> bool:
    import psutil

    return bool(psutil.pid_exists(process))


@cache
def _machine() -> str:
    """Return a tag of this machine; containers have their own processes, and often the same name."""
    namespace = ""
    if sys.platform == "linux":
        with suppress(OSError):
            namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - not a path
    return f"{zlib.crc32(f'{platform.node()} {namespace}'.encode()):08x}"


def _shorten(name: str) -> str:
    """Return the beginning of a name that leaves room for the mark of a temporary one."""
    while len(os.fsencode(name)) > _MAX_NAME_BYTES:
        name = name[:-1]
    return name
