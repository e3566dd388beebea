"""Earlier runs: their state, folded from the log, or only their curves; and their results, to be sampled."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from modules.config.schema import Config
from trainer.events import RunStarted, StepFinished
from trainer.run_folder.backup import list_backups
from trainer.run_folder.event_log import EVENTS_FILE, num_whole_bytes
from trainer.run_folder.records import CRASH, config_of, is_run, read_record, run_dirs, timed_events
from trainer.run_folder.run_lock import holder_of
from ui.loop.folding import fold, history_before
from ui.loop.run_state import RunState
from ui.loop.series import EMPTY, PastRun, Series

_EVENT_KEYS = {"loss": "loss", "smoothed": "smoothed_loss"}


def read_past_state(run_dir: Path) -> RunState:
    """Return the state of a run that is over: its curves and samples, its log, and how its last attempt ended.

    Reads the whole log: for a background thread.
    """
    state = replace(_read_state(run_dir), phase="", detail="", choices=None)
    if not is_run(run_dir) or state.is_over or holder_of(run_dir) is not None:
        return state
    backup = next(reversed(list_backups(run_dir)), None)
    return replace(state, failed=replace(CRASH, backup_path=str(backup.path) if backup is not None else ""))


def read_state_so_far(run_dir: Path) -> tuple[RunState, int]:
    """Return the state of a run that is not over, and how many bytes of its log this is. For a background thread.

    One that ended, and has just been resumed, is starting.
    """
    num_bytes = num_whole_bytes(run_dir)
    state = _read_state(run_dir, num_bytes)
    return replace(state, finished=None, failed=None, phase=state.phase or "starting"), num_bytes


def _read_state(run_dir: Path, num_bytes: int | None = None) -> RunState:
    timed = list(timed_events(run_dir, num_bytes))
    history = history_before((event for _, event in timed), until_step=sys.maxsize)
    state, newest_at = RunState(), 0.0
    for at_seconds, event in timed:
        if state.is_over:  # it was resumed
            state = replace(state, finished=None, failed=None)
        if isinstance(event, StepFinished):  # the history has them, each once
            newest_at = at_seconds
            continue
        if isinstance(event, RunStarted):  # the last attempt may have been killed after this step
            state = replace(state, timing=replace(state.timing, newest_at=newest_at))
        state = fold(state, event, at_seconds)
    return replace(
        state,
        timing=replace(state.timing, newest_at=newest_at),
        step=history.step,
        series=history.series,
        metrics=history.metrics,
        validations=history.validations,
        rewards=history.rewards,
        samples=history.samples,
        rollout=history.rollout,
    )


def list_runs_with_log(workspace: Path, *, without: Path | None = None) -> list[Path]:
    """Return the folders of a workspace's runs that have a log, the newest first."""
    return [path for path in run_dirs(workspace) if path != without and is_run(path)]


def read_last_state(workspace: Path) -> RunState | None:
    """Return the state of the newest run of a workspace; None without one. For a background thread."""
    newest = next(iter(list_runs_with_log(workspace)), None)
    return None if newest is None else read_past_state(newest)


def read_past_run(run_dir: Path) -> PastRun:
    """Return the loss curves of a run, of all its attempts; empty ones if nothing can be read.

    Only the lines of steps are read, and of those only the losses: a run of 100,000 steps takes about a second.
    """
    try:
        with (run_dir / EVENTS_FILE).open(encoding="utf-8", errors="replace") as file:
            return PastRun(run_dir.name, _series(line for line in file if '"StepFinished"' in line[:40]))
    except OSError:
        return PastRun(run_dir.name)


def _series(lines: Iterable[str]) -> dict[str, Series]:
    series = dict.fromkeys(_EVENT_KEYS, EMPTY)
    for line in lines:
        try:
            event: Any = json.loads(line)
        except (ValueError, RecursionError):  # half written
            continue
        step = event.get("step") if isinstance(event, dict) else None
        if not isinstance(step, int):
            continue
        for name, key in _EVENT_KEYS.items():
            value = event.get(key)
            series[name] = series[name].add(step, value if isinstance(value, int | float) else None)
    return series


Kind = Literal["adapter", "full", "embedding"]
_KINDS: dict[str, Kind] = {"adapter": "adapter", "full": "full", "embedding": "embedding"}
_MAX_RUNS_READ = 30  # runs; of a long list the newest


@dataclass(frozen=True, slots=True)
class Result:
    """The newest model that a run has saved, and the settings of the run."""

    path: Path
    run_dir: Path
    kind: Kind
    label: str
    config: Config


def newest_results(workspaces: Iterable[Path], most: int = 6) -> tuple[Result, ...]:
    """Return the results of the newest runs that have one which still exists; for a background thread.

    Of several runs with the same result file only the newest counts: it has written the file last.
    """
    folders = sorted(chain.from_iterable(map(run_dirs, dict.fromkeys(workspaces))), key=lambda f: f.name, reverse=True)
    results: dict[Path, Result] = {}
    for run_dir in folders[:_MAX_RUNS_READ]:
        result = result_of(run_dir)
        if result is not None:
            results.setdefault(result.path, result)
        if len(results) == most:
            break
    return tuple(results.values())


def result_of(run_dir: Path) -> Result | None:
    """Return the newest model of a run that still exists; None without one, or if it cannot be sampled."""
    record = read_record(run_dir)
    path = next((path for path in reversed(record.outputs) if path.exists()), None)
    config = config_of(run_dir) if path is not None else None
    kind = _KINDS.get(config.training.trains) if config is not None else None
    if path is None or config is None or kind is None:
        return None
    start = f"{record.started:%Y-%m-%d %H:%M}" if record.started else record.name
    return Result(path, run_dir, kind, f"{path.name} ({start}, step {record.step:,})", config)
