"""Claims of entries: if several runs fill one cache folder at the same time, only one of them builds each entry.

Each build holds a lock file in the folder `builds`. While it finds another one there, it claims each entry by a lock
file beside it, just before it is built. What another run has claimed is skipped, and looked at again when this run has
nothing else to build and holds no claim itself. So two runs never wait for each other. A run alone claims nothing: what
it is building when a second one arrives is not claimed, and may be built by both. That is harmless, as each entry is
written under a name of its own and renamed. The system releases the locks of a killed run. On a drive without locks,
runs on several computers may build an entry twice.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, TypeVar
from uuid import uuid4

from modules.data.cache.store import EntryStore
from modules.system.file_lock import FileLock, Holder, LockTaken, locked_soon

BUILDS = "builds"  # the folder of the lock files of builds
_ARRIVAL_SECONDS = 5.0  # others that look at a new lock file hold it for microseconds
_PATIENCE_SECONDS = 60.0  # with another run that holds claims and builds nothing, for example because it is paused
_PAUSE_SECONDS = 0.1


class Job(Protocol):
    """An entry to be built: its key, and whatever its build needs."""

    @property
    def key(self) -> str: ...


JobType = TypeVar("JobType", bound=Job)


def lock_file(folder: Path, key: str) -> Path:
    """Return the file by which an entry of a folder is claimed."""
    return folder / key[:2] / f".{key}.lock"


def brief_pause() -> None:
    """Wait a moment for other runs."""
    time.sleep(_PAUSE_SECONDS)


class Claims(Generic[JobType]):
    """The claims of a build. `pause` is called while it waits for other runs, and may raise to stop.

    Other threads may release claims. On leaving its context all are released.
    """

    def __init__(
        self, store: EntryStore, pause: Callable[[], None], *, patience_seconds: float = _PATIENCE_SECONDS
    ) -> None:
        self._store = store
        self._folder = store.folder
        self._pause = pause
        self._patience_seconds = patience_seconds
        self._is_patient = True
        self._holder = Holder.of(os.getpid())
        self._name = f"{uuid4().hex}.lock"
        self._presence: FileLock | None = None
        self._locks: dict[str, FileLock] = {}
        self._skipped: deque[JobType] = deque()
        self._found: list[str] = []

    def __enter__(self) -> Claims[JobType]:
        if self._folder is not None:
            builds = self._folder / BUILDS
            # Without a lock file others do not see this build, which claims all the same. Writing the entries will say
            # what is wrong with the folder.
            with suppress(OSError, LockTaken):
                builds.mkdir(parents=True, exist_ok=True)
                self._presence = locked_soon(builds / self._name, patience_seconds=_ARRIVAL_SECONDS)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release(list(self._locks))
        if self._presence is not None:
            self._presence.release()

    def rounds(self, jobs: Iterable[JobType]) -> Iterator[Iterable[JobType]]:
        """Yield the jobs, then again and again those that others were building, until their entries are there.

        Each round must be built to its end before the next one is taken. Where the other run has not stored any entry
        for a minute, its jobs are built here, too.
        """
        yield jobs
        since = time.monotonic()
        while self._skipped:
            self._pause()
            again, self._skipped = self._skipped, deque()
            self._is_patient = time.monotonic() - since < self._patience_seconds
            yield again
            if len(self._skipped) < len(again):
                since = time.monotonic()

    def of(self, batches: Iterable[Sequence[JobType]]) -> Iterator[tuple[JobType, ...]]:
        """Claim and yield the jobs of each batch whose entries no other run builds or has built meanwhile."""
        for batch in batches:
            while self._skipped and self._store.has(self._skipped[0].key):
                self._found.append(self._skipped.popleft().key)
            is_alone = self._is_alone()
            if claimed := tuple(job for job in batch if self._claim(job, is_alone=is_alone)):
                yield claimed

    def _is_alone(self) -> bool:
        """Return whether no other run builds entries in the folder at the moment."""
        if self._folder is None:
            return True
        if self._presence is None:
            return False
        try:
            others = [file for file in (self._folder / BUILDS).iterdir() if file.name != self._name]
        except OSError:
            return False
        return not any(self._is_held(file) for file in others)

    def _is_held(self, file: Path) -> bool:
        """Return whether the lock file belongs to a run that builds; that of a killed one is removed."""
        try:
            FileLock(file, self._holder).release()
        except LockTaken as taken:
            return _is_real(taken)
        except OSError:  # of another user, whose claims cannot be read either
            return False
        return False

    def _claim(self, job: JobType, *, is_alone: bool) -> bool:
        if not (is_alone or self._lock(job.key)):
            self._skipped.append(job)
            return False
        if self._store.has(job.key):  # another run has stored it before this one had the lock
            self.release([job.key])
            self._found.append(job.key)
            return False
        return True

    def _lock(self, key: str) -> bool:
        """Return whether the entry is to be built here."""
        assert self._folder is not None, "other runs may build entries there"
        file = lock_file(self._folder, key)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._locks[key] = FileLock(file, self._holder)
        except LockTaken as taken:
            return not (_is_real(taken) and self._is_patient)
        except OSError:  # writing the entry will say what is wrong with the folder
            return True
        return True

    def release(self, keys: Iterable[str]) -> None:
        """Release the claims of entries that are stored, or cannot be built."""
        for key in keys:
            if (lock := self._locks.pop(key, None)) is not None:
                lock.release()

    def take_found(self) -> list[str]:
        """Return the keys that others have built since the last call."""
        found, self._found = self._found, []
        return found


def _is_real(taken: LockTaken) -> bool:
    """Return whether a lock belongs to a run that lives.

    Without locks the file of a killed run on another computer stays, and looks like that of a living one.
    """
    return taken.is_certain or (taken.holder is not None and taken.holder.is_of_this_computer)
