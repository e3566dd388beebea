"""The list of runs: reading it in the background, and its cells, facts and questions as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from modules.families.registry import FAMILIES
from modules.objectives.registry import METHODS
from modules.system.paths import as_config_path
from modules.system.problem import count, format_size
from trainer.machine_events import PaceMeasured
from trainer.run_folder.records import RunRecord, read_record, run_dirs_of, stamp_of
from trainer.run_folder.since_last_good import CAUSES_OF_FAILURE, CAUSES_OF_SLOWNESS, since_last_good
from trainer.run_folder.trash import Contents
from trainer.run_status import RunStatus
from trainer.wording import format_loss
from ui.loop.background import Background, Job, cancel
from ui.loop.signal import Signal
from ui.loop.wording import cost_text, format_duration

_PARTS = {"backup": "backups", "samples": "samples", "save": "saved models", "tensorboard": "TensorBoard logs"}


def row_of(record: RunRecord) -> tuple[str, ...]:
    """Return the cells of a run: start, result, ending, steps, best validation, length, size."""
    return (
        start_text(record),
        record.title,
        f"On {record.remote}" if record.status is RunStatus.ELSEWHERE else record.status.label,
        f"{record.step:,} of {record.total_steps:,}" if record.total_steps else "–",
        format_loss(record.best_loss),
        format_duration(record.seconds) if record.seconds else "–",
        format_size(record.size_bytes),
    )


def start_text(record: RunRecord) -> str:
    """Return when a run was started, as text; the name of its folder if that is not a date."""
    return f"{record.started:%Y-%m-%d %H:%M}" if record.started else record.name


def step_text(pace: PaceMeasured | None) -> str:
    """Return the time of a step as text; a dash if it was not measured."""
    return "–" if pace is None else f"{pace.step_seconds:.3g} s"


def memory_text(pace: PaceMeasured | None) -> str:
    """Return the most memory that a run held, as text; a dash if it was not measured."""
    if pace is None:
        return "–"
    return f"{format_size(pace.process_peak)}{f', card {format_size(pace.card_peak)}' if pace.card_peak else ''}"


def changes_line(record: RunRecord) -> str:
    """Return the changes since the last finished run, as a sentence; empty without one. For a background thread."""
    since = since_last_good(record.run_dir)
    if since is None:
        return ""
    has_failed, pace = record.status.is_failure, [d.text for d in since.differences if d.topic == "pace"]
    causes = CAUSES_OF_FAILURE if has_failed else CAUSES_OF_SLOWNESS
    changed = since.sentence(causes, names_cause=has_failed or bool(pace))
    return changed + "".join(f" Also, {text}." for text in pace)


def fact_lines(record: RunRecord) -> list[str]:
    """Return the known facts of a run, one per line."""
    ending = record.status.label
    if record.status is RunStatus.ELSEWHERE:
        ending = f"It trains on {record.remote}, or has ended there; follow it under More"
    lines = [record.message if record.message.startswith(ending) else f"{ending}. {record.message}".strip()]
    if record.remote and record.status is not RunStatus.ELSEWHERE:
        cost = cost_text(record.price_per_hour, record.machine_seconds)
        lines.append(f"Trained on {record.remote}{f', for about {cost}' if cost else ''}")
    if record.total_steps:
        took = f" in {format_duration(record.seconds)}" if record.seconds else ""
        lines.append(f"Step {record.step:,} of {record.total_steps:,}{took}")
    if record.pace is not None:
        lines.append(f"A step took {step_text(record.pace)}; peak memory {memory_text(record.pace)}")
    if record.facts is not None:
        family, method = FAMILIES.get(record.facts.family), METHODS.get(record.facts.method)
        labels = [family.label if family else record.facts.family, method.label if method else record.facts.method]
        lines.append(f"{', '.join(labels)}; {count(record.facts.num_images, 'image')} on {record.facts.device}")
    if record.base_model:
        lines.append(f"Model: {record.base_model}")
    if record.best_loss is not None and record.best_step is not None:
        lines.append(f"Best validation: {format_loss(record.best_loss)} at step {record.best_step:,}")
    if record.chosen_step is not None:
        lines.append(f"Result: step {record.chosen_step:,}, chosen afterwards")
    if record.origin is not None:
        how = "the weights of " if record.origin.is_weights_only else ""
        lines.append(f"Fork of {how}{record.origin.run_dir.name}, step {record.origin.step:,}")
    samples = f", {count(record.num_samples, 'sample')}" if record.num_samples else ""
    lines.append(f"{format_size(record.size_bytes)}{samples}, {count(len(record.backups), 'backup')}")
    lines += [f"Output: {_place_of(path, record)}" for path in record.outputs[-3:]]
    lines.append(f"Workspace: {as_config_path(record.workspace)}")
    return lines


def _place_of(path: Path, record: RunRecord) -> str:
    """Return the path of an output: inside the run's folder relative to it."""
    is_inside = path.is_relative_to(record.run_dir)
    return path.relative_to(record.run_dir).as_posix() if is_inside else as_config_path(path)


def describe_deletion(contents: Sequence[Contents], outputs: Sequence[Path]) -> str:
    """Describe what a deletion moves to the trash, and what stays."""
    total, num_files = sum(c.size_bytes for c in contents), sum(c.num_files for c in contents)
    lines = [f"{format_size(total)} in {count(num_files, 'file')}:"]
    for each in contents[:8]:
        parts = ", ".join(f"{_PARTS.get(name, 'the rest')} {format_size(size)}" for name, size in each.parts)
        lines.append(f"  {each.run_dir.name}: {parts or 'empty'}")
    if len(contents) > 8:
        lines.append(f"  and {count(len(contents) - 8, 'more run')}")
    lines.append("They go to the trash of their workspace, from which they can be brought back until it is emptied.")
    stay = [str(path) for path in outputs if path.exists() and not _is_in(path, contents)]
    if stay:
        lines.append(f"Exported models stay: {', '.join(stay[:4])}{' and more' if len(stay) > 4 else ''}.")
    return "\n".join(lines)


def _is_in(path: Path, contents: Sequence[Contents]) -> bool:
    return any(path.is_relative_to(each.run_dir) for each in contents)


_PORTION = 20  # runs read by one job: the first ones appear at once
SortKey = Callable[[RunRecord], Any]
SORTS: dict[str, SortKey] = {
    "model": lambda r: r.title.lower(),
    "ending": lambda r: r.status.label,
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
        cancel(self._job)
        self.is_reading = True
        places, known = tuple(dict.fromkeys(workspaces)), dict(self._stamps)
        self._job = self._background.run(partial(_read_new_runs, places, known), self._keep_stamps)
        self.changed()

    def visible(self) -> list[RunRecord]:
        """Return the runs that the search leaves, in order."""
        terms = self.search.lower().split()
        matches = [r for r in self._records.values() if not terms or _matches(r, terms)]
        matches.sort(key=self._age, reverse=True)
        return sorted(matches, key=SORTS.get(self.sorting.column, self._age), reverse=self.sorting.is_descending)

    def _age(self, record: RunRecord) -> int:
        return self._ages[record.run_dir]

    def _keep_stamps(self, runs: tuple[list[Path], list[tuple[Path, tuple[object, ...]]]]) -> None:
        present, changed = runs
        existing = set(present)
        self._ages = {run_dir: age for age, run_dir in enumerate(reversed(present))}
        self._records = {path: record for path, record in self._records.items() if path in existing}
        self._stamps = {path: stamp for path, stamp in self._stamps.items() if path in existing}
        self._read_on(changed)

    def _read_on(self, waiting: Sequence[tuple[Path, tuple[object, ...]]]) -> None:
        portion, rest = waiting[:_PORTION], waiting[_PORTION:]
        self.is_reading = bool(portion)
        self.changed()
        if portion:
            work = partial(_records_of, portion)
            self._job = self._background.run(work, partial(self._keep_records, portion, rest))

    def _keep_records(
        self,
        portion: Sequence[tuple[Path, tuple[object, ...]]],
        rest: Sequence[tuple[Path, tuple[object, ...]]],
        records: list[RunRecord],
    ) -> None:
        self._records |= {record.run_dir: record for record in records}
        self._stamps |= dict(portion)
        self._read_on(rest)


def _read_new_runs(
    workspaces: Sequence[Path], known: dict[Path, tuple[object, ...]]
) -> tuple[list[Path], list[tuple[Path, tuple[object, ...]]]]:
    """Return the runs that exist, the newest first, and those whose stamp is not the known one."""
    present = run_dirs_of(workspaces)
    stamps = [(run_dir, stamp_of(run_dir)) for run_dir in present]
    return present, [(run_dir, stamp) for run_dir, stamp in stamps if known.get(run_dir) != stamp]


def _records_of(portion: Sequence[tuple[Path, tuple[object, ...]]]) -> list[RunRecord]:
    return [read_record(run_dir) for run_dir, _ in portion]


def _matches(record: RunRecord, terms: Sequence[str]) -> bool:
    text = " ".join(
        (str(record.run_dir), *row_of(record), record.base_model, record.destination, record.message)
    ).lower()
    return all(word in text for word in terms)
