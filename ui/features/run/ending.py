"""The end of a run that has a result: its samples next to the first ones, and what can be done with the result."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.identify import identify
from modules.families.kinds.registry import FILE_KINDS
from modules.system.problem import format_size
from trainer.events import SampleReady
from trainer.run_folder.backup import BackupInfo, list_backups
from trainer.run_status import RunStatus
from ui.features.run.samples import name_of, read_stars
from ui.loop.past_runs import Result, result_of
from ui.loop.run_state import RunState

MAX_PAIRS = 4


@dataclass(frozen=True, slots=True)
class RunEnd:
    """A run that has finished: its folder, its result with the step of that, its closing message, and the
    epochs that it had.

    `doubts` is why a program does not load all of the result, by the program.
    """

    run_dir: Path
    result: Path
    step: int
    message: str
    epochs: int
    stopped_early: bool
    doubts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class EndFacts:
    """The facts on disk about a run that has finished: the kind of its result, its size, and the ways on.

    `sampled` is the result for the Generate page, `backup` the one to train longer from, each None if there is none;
    `starred` are the samples that the user has starred.
    """

    kind: FileKind
    size_bytes: int
    sampled: Result | None
    backup: BackupInfo | None
    starred: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The kind and the size of the result."""
        return f"{FILE_KINDS[self.kind.kind].label}, {format_size(self.size_bytes)}."


@dataclass(frozen=True, slots=True)
class Pair:
    """A sample of the result, or a starred one, and the first sample of its prompt, if that is earlier."""

    after: SampleReady
    before: SampleReady | None
    is_starred: bool = False


def end_of(state: RunState) -> RunEnd | None:
    """Return the end of a run; None while it trains, and for one that failed, was stopped or wrote no result."""
    finished, started = state.finished, state.started
    if finished is None or started is None or state.failed is not None:
        return None
    if finished.outcome == "stopped" or not finished.model_path:
        return None
    save = next((s for s in reversed(state.saves) if s.is_final and s.path == finished.model_path), None)
    loading = {} if save is None else {p: save.reasons.get(p, "") for p, a in save.loading.items() if a in _NOT_ALL}
    is_early = finished.status is RunStatus.STOPPED_EARLY
    return RunEnd(
        Path(started.run_dir),
        Path(finished.model_path),
        finished.step if save is None else save.step,
        finished.message,
        state.step.epoch if is_early and state.step is not None else started.epochs,
        is_early,
        tuple(loading.items()),
    )


_NOT_ALL = ("no", "partly")


def look_at(end: RunEnd) -> EndFacts | None:
    """Return the facts of a finished run; None if its result is gone. For a background thread."""
    try:
        files = [f for f in end.result.rglob("*") if f.is_file()] if end.result.is_dir() else [end.result]
        size = sum(file.stat().st_size for file in files)
    except OSError:
        return None
    sampled = result_of(end.run_dir)
    return EndFacts(
        identify(end.result),
        size,
        sampled if sampled is not None and sampled.path == end.result else None,
        next(reversed(list_backups(end.run_dir)), None),
        read_stars(end.run_dir),
    )


def pairs_of(samples: Sequence[SampleReady], end: RunEnd, starred: Collection[str] = ()) -> list[Pair]:
    """Return pairs of samples, one for each prompt, those with a star first: a starred sample, or the result's one.

    The result's sample is the newest one that is not of a later step.
    """
    pairs = []
    for index in dict.fromkeys(s.index for s in samples):
        of_prompt = [s for s in samples if s.index == index and not s.is_without_ema]
        with_star = [s for s in of_prompt if name_of(Path(s.path), end.run_dir) in starred]
        of_result = [s for s in of_prompt if s.step <= end.step]
        after = max(with_star or of_result, key=lambda s: s.step, default=None)
        first = min(of_prompt, key=lambda s: s.step, default=None)
        if after is not None:
            before = first if first is not None and first.step < after.step else None
            pairs.append(Pair(after, before, bool(with_star)))
    return sorted(pairs, key=lambda pair: (not pair.is_starred, pair.after.index))[:MAX_PAIRS]
