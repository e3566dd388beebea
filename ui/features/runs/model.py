"""The runs of all known workspaces: read in the background in small portions, searched and sorted. No Tk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trainer.run_folder.records import RunRecord, read_record, run_dirs_of, stamp_of
from ui.features.runs.wording import ENDINGS, model_name, row_of
from ui.loop.background import Background, Job
from ui.loop.signal import Signal

_PORTION = 20  # runs read by one job: the first ones appear at once
SortKey = Callable[[RunRecord], Any]
SORTS: dict[str, SortKey] = {
    "model": lambda r: model_name(r).lower(),
    "ending": lambda r: ENDINGS[r.ending],
    "steps": lambda r: r.step,
    "length": lambda r: r.seconds,
    "best": lambda r: (r.best_loss is None, r.best_loss or 0.0),
    "size": lambda r: r.size_bytes,
}
_DESCENDING_FIRST = frozenset({"started", "steps", "length", "size"})


@dataclass(frozen=True, slots=True)
class Sorting:
    """The column that the list is sorted by, and the direction."""

    column: str = "started"
    is_descending: bool = True

    def by(self, column: str) -> Sorting:
        """Return the sorting after a click on the heading of a column."""
        if column == self.column:
            return replace(self, is_descending=not self.is_descending)
        return Sorting(column, column in _DESCENDING_FIRST)


class RunList:
    """The records of all runs; `changed` is emitted after each portion."""

    def __init__(self, background: Background) -> None:
        self.search = ""
        self.sorting = Sorting()
        self.is_reading = False
        self.changed: Signal[[]] = Signal()
        self._background = background
        self._records: dict[Path, RunRecord] = {}
        self._stamps: dict[Path, tuple[object, ...]] = {}
        self._ages: dict[Path, int] = {}  # places in the order by age, the oldest at 0
        self._job: Job | None = None

    def __len__(self) -> int:
        return len(self._records)

    @property
    def workspaces(self) -> tuple[Path, ...]:
        """The workspaces of the runs in the list."""
        return tuple(dict.fromkeys(r.workspace for r in self._records.values()))

    def of(self, run_dir: Path) -> RunRecord | None:
        """Return the record of a run."""
        return self._records.get(run_dir)

    def refresh(self, workspaces: Iterable[Path]) -> None:
        """Find the runs of some workspaces, and read those that are new or have changed."""
        if self._job is not None:
            self._job.cancel()
        self.is_reading = True
        places, known = tuple(dict.fromkeys(workspaces)), dict(self._stamps)
        self._job = self._background.run(partial(_found, places, known), self._take)
        self.changed()

    def visible(self) -> list[RunRecord]:
        """Return the runs that the search leaves, in order."""
        words = self.search.lower().split()
        kept = [r for r in self._records.values() if not words or _matches(r, words)]
        kept.sort(key=self._age, reverse=True)
        return sorted(kept, key=SORTS.get(self.sorting.column, self._age), reverse=self.sorting.is_descending)

    def _age(self, record: RunRecord) -> int:
        return self._ages[record.run_dir]

    def _take(self, found: tuple[list[Path], list[tuple[Path, tuple[object, ...]]]]) -> None:
        present, changed = found
        kept = set(present)
        self._ages = {run_dir: age for age, run_dir in enumerate(reversed(present))}
        self._records = {path: record for path, record in self._records.items() if path in kept}
        self._stamps = {path: stamp for path, stamp in self._stamps.items() if path in kept}
        self._read_on(changed)

    def _read_on(self, waiting: Sequence[tuple[Path, tuple[object, ...]]]) -> None:
        portion, rest = waiting[:_PORTION], waiting[_PORTION:]
        self.is_reading = bool(portion)
        self.changed()
        if portion:
            work = partial(_records_of, portion)
            self._job = self._background.run(work, partial(self._keep, portion, rest))

    def _keep(
        self,
        portion: Sequence[tuple[Path, tuple[object, ...]]],
        rest: Sequence[tuple[Path, tuple[object, ...]]],
        records: list[RunRecord],
    ) -> None:
        self._records |= {record.run_dir: record for record in records}
        self._stamps |= dict(portion)
        self._read_on(rest)


def _found(
    workspaces: Sequence[Path], known: dict[Path, tuple[object, ...]]
) -> tuple[list[Path], list[tuple[Path, tuple[object, ...]]]]:
    """Return the runs that exist, the newest first, and those whose stamp is not the known one."""
    present = run_dirs_of(workspaces)
    stamped = [(run_dir, stamp_of(run_dir)) for run_dir in present]
    return present, [(run_dir, stamp) for run_dir, stamp in stamped if known.get(run_dir) != stamp]


def _records_of(portion: Sequence[tuple[Path, tuple[object, ...]]]) -> list[RunRecord]:
    return [read_record(run_dir) for run_dir, _ in portion]


def _matches(record: RunRecord, words: Sequence[str]) -> bool:
    text = " ".join(
        (str(record.run_dir), *row_of(record), record.base_model, record.destination, record.message)
    ).lower()
    return all(word in text for word in words)
