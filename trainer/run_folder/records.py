"""Records of the runs of a workspace, read from their folders.

A run's log has a line for every step, so only the first and the last of them are parsed: five hundred runs are read in
about a second.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from modules.config.codec import load_file
from modules.config.schema import Config
from modules.system.file_lock import Holder
from modules.system.regular_files import read_json_object
from trainer import events
from trainer.event_lines import from_line
from trainer.machine_events import PaceMeasured
from trainer.run_folder.backup import BackupInfo, list_backups
from trainer.run_folder.elsewhere import LINK_FILE, elsewhere_of
from trainer.run_folder.event_log import EVENTS_FILE, outlasts
from trainer.run_folder.fork import Origin, origin_of
from trainer.run_folder.result import RESULTS_FILE, results_of
from trainer.run_folder.run_dir import RUN_FILE, age_of, begun_at, given_name, started_at
from trainer.run_folder.run_lock import holder_of
from trainer.run_status import CRASH_MESSAGE, RunStatus

CRASH = events.RunFailed(CRASH_MESSAGE, is_crash=True)
"""The ending of a run whose log has none."""
_OF_STEP = b'{"event": "StepFinished"'


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run: its folder and the facts in its log. `seconds` is the time that it ran, without the time between attempts;
    `machine_seconds` adds the preparation of the first attempt, for which another machine is paid, too.

    It has crashed if neither an ending was logged nor a process holds the folder. `best_loss` is the lowest validation
    loss, `pace` the pace of the last attempt. `outputs` are the saved models, `size_bytes` is the size of the folder
    without them. `chosen_step` is the step of the result if the user has chosen an earlier model as the result.
    """

    run_dir: Path
    started: datetime | None
    status: RunStatus
    message: str
    step: int
    total_steps: int
    seconds: float
    best_loss: float | None
    best_step: int | None
    num_samples: int
    outputs: tuple[Path, ...]
    size_bytes: int
    facts: events.RunStarted | None
    backups: tuple[BackupInfo, ...] = ()
    origin: Origin | None = None
    base_model: str = ""
    destination: str = ""
    given_name: str = ""
    pace: PaceMeasured | None = None
    chosen_step: int | None = None
    remote: str = ""  # the machine that trains it; empty for this one
    price_per_hour: float = 0.0  # of that machine
    machine_seconds: float = 0.0
    newest_sample: str = ""  # the file of the first prompt at the newest step; empty without samples

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.run_dir.name

    @property
    def title(self) -> str:
        """The name that a person has given; otherwise the name of the result's file, or of the base model."""
        name = Path(self.destination or self.base_model).name
        return self.given_name or (Path(name).stem if name else self.name)

    @property
    def workspace(self) -> Path:
        """The workspace it belongs to."""
        return self.run_dir.parent.parent

    @property
    def newest_backup(self) -> BackupInfo | None:
        """The backup it would be resumed from."""
        return self.backups[-1] if self.backups else None

    @property
    def is_unfinished(self) -> bool:
        """Whether it ended unexpectedly and can be resumed."""
        return self.status is RunStatus.CRASHED and bool(self.backups)


def run_dirs(workspace: Path) -> list[Path]:
    """Return the folders of the runs of a workspace, the newest first."""
    try:
        folders = [path for path in (workspace / "runs").iterdir() if path.is_dir() and not path.name.startswith(".")]
    except (OSError, ValueError):
        return []
    return sorted(folders, key=age_of, reverse=True)


def run_dirs_of(workspaces: Iterable[Path]) -> list[Path]:
    """Return the folders of the runs of several workspaces, the newest first.

    Their numbers order the runs of one workspace only. Among workspaces the time counts at which a run began; within a
    workspace it never goes back. Runs of versions that did not write it have the local time of their log or name, which
    is ambiguous in the hour that is repeated when the clock is set back.
    """
    timed: list[tuple[float, Path]] = []
    for workspace in dict.fromkeys(workspaces):
        latest = 0.0
        for run_dir in reversed(run_dirs(workspace)):
            latest = max(latest, _began_at(run_dir))
            timed.append((latest, run_dir))
    timed.reverse()  # of one time, the newer of a workspace stays before the older
    return [run_dir for _, run_dir in sorted(timed, key=lambda entry: entry[0], reverse=True)]


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run's: it has a log."""
    return (folder / EVENTS_FILE).is_file()


def read_record(run_dir: Path) -> RunRecord:
    """Return the record of a run. What cannot be read is left out."""
    log = _Log()
    for line in _lines(run_dir):
        log.add(line)
    log.close()
    best_loss, best_step = log.best
    holder, settings, elsewhere = holder_of(run_dir), raw_settings(run_dir), elsewhere_of(run_dir)
    status = log.end.status if holder is None else RunStatus.RUNNING
    if log.end is CRASH and holder is None and elsewhere is not None:
        status = RunStatus.ELSEWHERE
    return RunRecord(
        run_dir=run_dir,
        started=started_at(run_dir),
        status=status,
        message=log.end.text if holder is None and status is not RunStatus.ELSEWHERE else "",
        step=log.last.step if log.last else (log.started.first_step if log.started else 0),
        total_steps=log.last.total_steps if log.last else (log.started.total_steps if log.started else 0),
        seconds=log.seconds,
        best_loss=best_loss,
        best_step=best_step,
        num_samples=log.num_samples,
        outputs=tuple(dict.fromkeys(log.outputs)),
        size_bytes=size_of(run_dir),
        facts=log.started,
        backups=tuple(list_backups(run_dir)),
        origin=origin_of(run_dir),
        base_model=_text_in(settings, "model", "base_model"),
        destination=_text_in(settings, "output", "destination"),
        given_name=given_name(run_dir),
        pace=log.pace,
        chosen_step=next((r.model_step for r in reversed(results_of(run_dir)) if not r.is_abandoned), None),
        newest_sample=log.newest_sample,
        remote=elsewhere.remote if elsewhere is not None else "",
        price_per_hour=elsewhere.price_per_hour if elsewhere is not None else 0.0,
        machine_seconds=log.seconds + log.preparation_seconds(begun_at(run_dir)),
    )


def config_of(run_dir: Path) -> Config | None:
    """Return the settings that a run was started with last; None if they cannot be read."""
    file = run_dir / "config.json"
    loaded = load_file(file) if file.is_file() else None
    if loaded is None or any(p.severity == "error" and not p.path for p in loaded.problems):
        return None
    return loaded.config


def stamp_of(run_dir: Path) -> tuple[object, ...]:
    """Return a value that changes when the run does: cheap, for a list that is read again and again."""
    files = (EVENTS_FILE, RESULTS_FILE, "backup", "save", RUN_FILE, LINK_FILE)
    return (*(_stat(run_dir / file) for file in files), holder_of(run_dir) is not None)


def newest_unfinished(workspaces: Iterable[Path]) -> RunRecord | None:
    """Return the newest run that ended unexpectedly and can be resumed.

    Only the newest run of each workspace counts: whoever has started another one since knows about the earlier one.
    """
    newest: dict[Path, Path] = {}  # of each workspace, in the order of their ages
    for run_dir in run_dirs_of(workspaces):
        newest.setdefault(run_dir.parent, run_dir)
    return next((r for r in map(read_record, newest.values()) if r.is_unfinished), None)


def running_in(workspace: Path) -> Iterator[tuple[Path, Holder]]:
    """Yield the folder and the process of each run of a workspace that trains at the moment."""
    for run_dir in run_dirs(workspace):
        holder = holder_of(run_dir)
        if holder is not None:
            yield run_dir, holder


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder; files that disappear meanwhile do not count."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name), follow_symlinks=False).st_size  # noqa: PTH116, PTH118 - fast
            except OSError:
                continue
    return total


def timed_events(run_dir: Path, num_bytes: int | None = None) -> Iterator[tuple[float, events.Event]]:
    """Yield the events of a run with their time in seconds since 1970; 0 where the log has none.

    With `num_bytes` only the events in so many bytes at the beginning of its log.
    """
    for line in _lines(run_dir):
        if num_bytes is not None and (num_bytes := num_bytes - len(line)) < 0:
            return
        event = from_line(line.decode(errors="replace"))
        if event is not None:
            yield time_of(line) or 0.0, event


class _Log:
    """Collects the facts of a log line by line; of the steps only the first and the last of an attempt are parsed."""

    def __init__(self) -> None:
        self.started: events.RunStarted | None = None
        self.last: events.StepFinished | None = None
        self._validations: list[events.ValidationFinished] = []
        self._samples: list[events.SampleReady] = []
        self.outputs: list[Path] = []
        self.pace: PaceMeasured | None = None
        self.seconds = 0.0
        self._first_began: float | None = None
        self.end: events.RunFinished | events.RunFailed = CRASH
        self._last_step = b""
        self._attempt_began: float | None = None
        self._attempt_seen: float | None = None

    @property
    def best(self) -> tuple[float | None, int | None]:
        """The best validation loss and its step, which the newest validation has."""
        newest = next((v for v in reversed(self._validations) if v.best_step is not None), None)
        return (newest.best_loss, newest.best_step) if newest is not None else (None, None)

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return len(self._samples)

    @property
    def newest_sample(self) -> str:
        """The file of the first prompt at the newest step with samples; empty without any."""
        newest = max((s.step for s in self._samples), default=0)
        return next((s.path for s in self._samples if s.step == newest), "")

    def add(self, line: bytes) -> None:
        """Add a line. Events after the step from which a run is resumed do not count any more."""
        if line.startswith(_OF_STEP):
            self._last_step = line
            self.end = CRASH
            return
        event = from_line(line.decode(errors="replace"))
        if event is None:
            return
        self._time(line, event)
        match event:
            case events.RunStarted():
                self.started = event
                self._validations = [v for v in self._validations if outlasts(v.step, event)]
                self._samples = [s for s in self._samples if outlasts(s.step, event)]
            case events.ValidationFinished():
                self._validations.append(event)
            case events.SampleReady():
                self._samples.append(event)
            case events.ModelSaved():
                self.outputs.append(Path(event.path))
            case PaceMeasured():
                self.pace = event
        self.end = event if isinstance(event, events.RunFinished | events.RunFailed) else CRASH

    def preparation_seconds(self, begun: float | None) -> float:
        """Return the seconds from the beginning of a run (`begun`, in seconds since 1970) to its first attempt."""
        return max(0.0, self._first_began - begun) if self._first_began is not None and begun is not None else 0.0

    def close(self) -> None:
        """Parse the last step, and close the last attempt."""
        event = from_line(self._last_step.decode(errors="replace")) if self._last_step else None
        self.last = event if isinstance(event, events.StepFinished) else None
        self._close_attempt()

    def _time(self, line: bytes, event: events.Event) -> None:
        """Add up the time of the attempts: each begins with RunStarted and ends with its last event."""
        if isinstance(event, events.RunStarted):
            self._close_attempt()
            self._attempt_began = self._attempt_seen = time_of(line)
            self._first_began = self._first_began if self._first_began is not None else self._attempt_began
            self._last_step = b""
        elif self._attempt_began is not None and not isinstance(event, events.PhaseChanged | events.RewardMeasured):
            self._attempt_seen = time_of(line) or self._attempt_seen
            if isinstance(event, events.RunFinished | events.RunFailed):
                self._close_attempt()

    def _close_attempt(self) -> None:
        if self._attempt_began is not None and self._attempt_seen is not None:
            last = max(self._attempt_seen, time_of(self._last_step) or 0.0)
            self.seconds += max(0.0, last - self._attempt_began)
        self._attempt_began = None


def _lines(run_dir: Path) -> Iterator[bytes]:
    try:
        with (run_dir / EVENTS_FILE).open("rb") as file:
            yield from file
    except OSError:
        return


def time_of(line: str | bytes) -> float | None:
    """Return the time stamp of a line of a log in seconds since 1970; None without one."""
    try:
        data: Any = json.loads(line)
        return datetime.fromisoformat(data["time"]).timestamp()
    except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
        return None


def _began_at(run_dir: Path) -> float:
    """Return when a run began, in seconds since 1970; 0 if neither its folder, nor its log, nor its name has a time."""
    if (begun := begun_at(run_dir)) is not None:
        return begun
    first = time_of(next(_lines(run_dir), b""))
    named = started_at(run_dir)
    return first if first is not None else (named.timestamp() if named else 0.0)


def raw_settings(run_dir: Path) -> dict[str, Any]:
    """Return the run's config as it is in the file: reading it in full takes too long for a list of runs."""
    return read_json_object(run_dir / "config.json") or {}


def _text_in(settings: dict[str, Any], section: str, key: str) -> str:
    inner = settings.get(section)
    return str(inner.get(key, "")) if isinstance(inner, dict) else ""


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
