"""The files of a folder and its subfolders with their sizes and dates, listed ahead by threads. None is opened."""

from __future__ import annotations

import os
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import NamedTuple

from modules.data.links import is_inside, leads_out

_THREADS = 8  # where they wait for the disk or the network
_LONG_WAIT = 4  # times the time of the processor: a busy machine alone makes it two or three
_MAX_FILES = 4096


class FolderFiles(NamedTuple):
    """Some files of one folder, at most 4,096, in the order of their names; sizes and dates are -1 where unknown.

    `suffixes` are the suffixes of the names, in lower case.
    """

    folder: Path
    names: list[str]
    suffixes: list[str]
    sizes_bytes: array[int]
    mtimes_ns: array[int]


class PackedFiles(NamedTuple):
    """The files of a folder with their names as one text: a million names as objects take 90 MB more."""

    files: FolderFiles
    names: str

    @classmethod
    def of(cls, files: FolderFiles) -> PackedFiles:
        """Return files with their names packed."""
        return cls(files._replace(names=[]), "\0".join(files.names))

    def unpack(self) -> FolderFiles:
        """Return the files as they were; each time their names are new objects."""
        return self.files._replace(names=self.names.split("\0"))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A path that is left out: a link out of the folder, a broken link, or a subfolder that cannot be listed."""

    path: Path
    error: OSError | None = None
    is_broken: bool = False


def list_files(
    folder: Path,
    *,
    include_subfolders: bool,
    leave_out: Callable[[LeftOut], None],
    within: Path | None = None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[FolderFiles]:
    """Yield the files of a folder, in the order of their paths. A folder that is reached twice, by links, is read once.

    `leave_out` gets links that lead out of the folder, or out of `within`, broken links, and subfolders that cannot be
    listed. `check` is called for each folder and may raise to stop. Raises OSError if the folder itself cannot be
    listed.
    """
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="darkroom-listing") as pool:
        walk = _Walk(pool, within or folder, leave_out, include_subfolders=include_subfolders)
        below = [walk.visit(folder, pool.submit(_list, folder, None))]
        while below:
            check()
            entry = next(below[-1], None)
            if entry is None:
                below.pop()
            elif isinstance(entry, FolderFiles):
                yield entry
            else:
                below.append(walk.visit(*entry))


_File = tuple[str, int, int, bool]
"""The name of a file, its size and date, and whether it is a link."""


class _FolderContent(NamedTuple):
    """The content of a folder, sorted; None for the files of a folder outside the bounds.

    `broken` are the names of links that lead to no file and no folder. `has_waited`: most of the time that listing it
    took was spent waiting, for the disk or the network.
    """

    real: str
    files: list[_File] | None
    folders: list[str]
    broken: Sequence[str] = ()
    has_waited: bool = False


class _Walk:
    """The visits of a folder and its subfolders. The next ones are listed ahead, several at once where they wait.

    Files in memory are listed by one thread: several would take the interpreter's lock from each other at each file,
    and need twice the time.
    """

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        bounds: Path,
        leave_out: Callable[[LeftOut], None],
        *,
        include_subfolders: bool,
    ) -> None:
        self._pool = pool
        self._bounds = bounds
        self._leave_out = leave_out
        self._include_subfolders = include_subfolders
        self._entered: set[str] = set()
        self._num_ahead = 1

    def visit(
        self, folder: Path, listing: Future[_FolderContent]
    ) -> Iterator[FolderFiles | tuple[Path, Future[_FolderContent]]]:
        """Yield the files of a folder, and between them its subfolders, in the order of their names."""
        try:
            listed = listing.result()
        except OSError as error:
            if not self._entered:
                raise
            self._leave_out(LeftOut(folder, error))
            return
        self._num_ahead = 2 * _THREADS if listed.has_waited else 1
        if listed.real in self._entered:
            return
        self._entered.add(listed.real)
        if listed.files is None:
            self._leave_out(LeftOut(folder))
            return
        files = self._within_bounds(folder, listed.files)
        for broken in listed.broken:
            self._leave_out(LeftOut(folder / broken, is_broken=not leads_out(folder / broken, self._bounds)))
        waiting = iter(listed.folders if self._include_subfolders else ())
        ahead: deque[tuple[Path, Future[_FolderContent]]] = deque()
        start = 0
        while True:
            while len(ahead) < self._num_ahead and (name := next(waiting, None)) is not None:
                ahead.append((folder / name, self._pool.submit(_list, folder / name, self._bounds)))
            end = bisect_left(files, order_of(ahead[0][0].name), key=lambda f: order_of(f[0])) if ahead else len(files)
            yield from _parts(folder, files[start:end])
            if not ahead:
                return
            start = end
            yield ahead.popleft()

    def _within_bounds(self, folder: Path, listed: list[_File]) -> list[_File]:
        """Return the files of a folder that are no links out of the bounds, which are reported."""
        files = [file for file in listed if not (file[3] and leads_out(folder / file[0], self._bounds))]
        if len(files) < len(listed):
            for left_out in sorted({file[0] for file in listed} - {file[0] for file in files}):
                self._leave_out(LeftOut(folder / left_out))
        return files


def _parts(folder: Path, files: Sequence[_File]) -> Iterator[FolderFiles]:
    for first in range(0, len(files), _MAX_FILES):
        names, sizes, mtimes, _ = zip(*files[first : first + _MAX_FILES], strict=True)
        suffixes = [intern(suffix_of(name).lower()) for name in names]
        yield FolderFiles(folder, list(names), suffixes, array("q", sizes), array("q", mtimes))


def _list(folder: Path, bounds: Path | None) -> _FolderContent:
    """Return the content of a folder; on another thread. Raises OSError."""
    real = os.path.realpath(folder)
    if bounds is not None and not is_inside(real, bounds):
        return _FolderContent(real, None, [])
    files: list[_File] = []
    folders: list[str] = []
    broken: list[str] = []
    started, started_own = time.perf_counter(), time.thread_time()
    with os.scandir(folder) as entries:
        for entry in entries:
            if _holds(entry.is_file):
                files.append((entry.name, *_size_and_date(entry), entry.is_symlink()))
            elif entry.name.startswith("."):
                continue
            elif _holds(entry.is_dir):
                folders.append(entry.name)
            elif entry.is_symlink():
                broken.append(entry.name)
    seconds, own_seconds = time.perf_counter() - started, time.thread_time() - started_own
    files.sort(key=lambda file: order_of(file[0]))
    folders.sort(key=order_of)
    return _FolderContent(real, files, folders, sorted(broken), seconds > _LONG_WAIT * own_seconds)


def order_of(name: str) -> str:
    """Return the key that sorts names as paths are sorted: on Windows without regard to case."""
    return name.lower() if os.name == "nt" else name


def _size_and_date(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        status = entry.stat()
    except OSError:  # deleted meanwhile
        return -1, -1
    return status.st_size, status.st_mtime_ns


def _holds(test: Callable[[], bool]) -> bool:
    try:
        return test()
    except OSError:  # a link to itself
        return False


def suffix_of(name: str) -> str:
    """Return the suffix of a name, as `Path.suffix` does."""
    dot = name.rfind(".")
    return name[dot:] if 0 < dot < len(name) - 1 else ""


def stem_of(name: str) -> str:
    """Return a name without its suffix, as `Path.stem` does."""
    dot = name.rfind(".")
    return name[:dot] if 0 < dot < len(name) - 1 else name
