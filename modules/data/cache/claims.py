"""Claims of entries: if several runs fill one cache folder at the same time, only one of them builds each entry.

A run claims an entry by a lock file beside it, just before it is built. What another run has claimed is skipped, and
looked at again when this run has nothing else to build and holds no claim itself. So two runs never wait for each
other. The system releases the claims of a killed run. On a drive without locks, runs on several computers may build an
entry twice.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from modules.data.cache.store import EntryStore
from modules.system.file_lock import FileLock, Holder, LockTaken

_PATIENCE_SECONDS = 60.0  # with another run that holds claims and builds nothing, for example because it is paused
_PAUSE_SECONDS = 0.1


class Job(Protocol):
    """An entry to be built: its key, and whatever its build needs."""

    @property
    def key(self) -> str: ...


JobType = TypeVar("JobType", bound=Job)


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
        self._pause = pause
        self._patience_seconds = patience_seconds
        self._is_patient = True
        self._holder = Holder.of(os.getpid())
        self._locks: dict[str, FileLock] = {}
        self._skipped: deque[JobType] = deque()
        self._found: list[str] = []

    def __enter__(self) -> Claims[JobType]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release(list(self._locks))

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
            if claimed := tuple(job for job in batch if self._claim(job)):
                yield claimed

    def _claim(self, job: JobType) -> bool:
        if not self._lock(job.key):
            self._skipped.append(job)
            return False
        if self._store.has(job.key):  # another run has stored it before this one had the lock
            self.release([job.key])
            self._found.append(job.key)
            return False
        return True

    def _lock(self, key: str) -> bool:
        """Return whether the entry is to be built here."""
        if (file := self._store.lock_file(key)) is None:
            return True
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._locks[key] = FileLock(file, self._holder)
        except LockTaken as taken:
            # Without locks the file of a killed run on another computer stays, and looks like that of a living one.
            is_real = taken.is_certain or (taken.holder is not None and taken.holder.is_of_this_computer)
            return not (is_real and self._is_patient)
        except OSError:  # writing the entry will say what is wrong with the folder
            return True
        return True

    def release(self, keys: Iterable[str]) -> None:
        """Release the claims of entries that are stored, or cannot be built."""
        for key in keys:
            with suppress(KeyError):
                self._locks.pop(key).release()

    def take_found(self) -> list[str]:
        """Return the keys that others have built since the last call."""
        found, self._found = self._found, []
        return found
