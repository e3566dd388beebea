"""A small run with all that runs write, under every fault: nothing it reported is lost, and it resumes bit-equal."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from modules.config.codec import load_file
from modules.config.schema import Config
from modules.formats.safetensors_io import read_safetensors
from modules.system.leftovers import TEMPORARY_MARK, sweep_once
from tests.builders.configs import small_config
from tests.builders.disk.checks import Row, words_wrong
from tests.builders.disk.recorder import FAULTS, Call, Fault, recording
from tests.builders.disk.replay import Crash, Tree, crashes, read_tree, write_tree
from tests.builders.runs import Ran, run
from trainer.events import BackupSaved, Event, ModelSaved, RunFailed, RunFinished, StepFinished, WarningRaised
from trainer.run_folder.backup import BackupInfo, list_backups, newest_resumable, verify
from trainer.run_folder.event_log import read_events
from trainer.run_folder.records import read_record, run_dirs

Tensors = dict[str, torch.Tensor]
_SAMPLE = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 1, "guidance": 1.0}
OLD_RESULT = b"the model of yesterday"


@dataclass
class RunScenario:
    """A run of four steps in `root`, with a backup, an intermediate save and a sample after each second step."""

    root: Path
    model: Path
    images: Path
    config: Config = field(init=False)
    before: Tree = field(init=False)
    calls: list[Call] = field(init=False)
    marks: list[tuple[int, Event]] = field(init=False)
    _resumed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Record a run without a fault."""
        self.root.mkdir(parents=True, exist_ok=True)
        every = {"n": 2, "unit": "step"}
        self.config = small_config(
            self.root,
            model=self.model,
            images=self.images,
            general={"tensorboard": True},
            training={"epochs": 2},
            backup={"every": every, "save_every": every, "keep": 1},
            sampling={"every": every, "prompts": [_SAMPLE]},
        )
        write_tree(self.root, {"out": None, "out/lora.safetensors": OLD_RESULT})
        self.before = read_tree(self.root)
        with recording(self.root, is_crash=True) as recorder:
            ran = run(self.config, on_event=lambda event, _: recorder.mark(event))
        self.calls, self.marks = recorder.calls, recorder.marks
        assert isinstance(ran.ending, RunFinished), ran.ending
        self.expected = _tensors(Path(ran.ending.model_path))

    # -- crashes

    def rows_of_crashes(self, *, numbers: Sequence[int] | None = None, resumes: bool = True) -> Iterator[Row]:
        """Replay the state after each call (or after some) for each crash, and resume each state that differs."""
        counts: dict[Crash, int] = {}
        lost: dict[Crash, list[str]] = {}
        for number, crash, tree in crashes(self.before, self.calls, numbers):
            counts[crash] = counts.get(crash, 0) + 1
            said = [event for place, event in self.marks if place <= number]
            if problem := self._after_crash(tree, said, is_power_failure=crash.startswith("power"), resumes=resumes):
                lost.setdefault(crash, []).append(f"{crash} after call {number}: {problem}")
        for crash, count in counts.items():
            yield Row("run", crash, count, tuple(lost.get(crash, ())))

    def _after_crash(self, tree: Tree, said: Sequence[Event], *, is_power_failure: bool, resumes: bool) -> str:
        write_tree(self.root, tree)
        sweep_once.cache_clear()
        try:
            problem = self._unreadable() or self._missing(said, is_power_failure=is_power_failure)
        except Exception as error:  # noqa: BLE001 - a reader that fails is a loss
            return f"a reader failed: {error!r}"
        if problem or not resumes:
            return problem
        key = self._key()
        if key not in self._resumed:
            self._resumed[key] = self._resume()
        return self._resumed[key]

    def _key(self) -> str:
        """Return what a resumed run depends on: the backups, and what is at the place of the result."""
        digest = hashlib.sha256()
        for path in sorted(self.root.rglob("*")):
            parts = path.relative_to(self.root).parts
            is_counted = path.is_file() and ("backup" in parts or parts[0] == "out" or path.name == "layout.json")
            if is_counted and TEMPORARY_MARK not in str(path):
                digest.update(str(path).encode() + path.read_bytes())
        return digest.hexdigest()

    # -- errors

    def rows_of_errors(self, points: Sequence[tuple[int, Fault]]) -> Iterator[Row]:
        """Let calls fail in new runs: the n-th with a fault, for each of the points."""
        for fault in FAULTS:
            of_fault = [number for number, other in points if other == fault]
            lost = [problem for number in of_fault if (problem := self.with_error(number, fault))]
            if of_fault:
                yield Row("run", fault, len(of_fault), tuple(lost))

    def with_error(self, number: int, fault: Fault) -> str:
        """Let a call of a new run fail; return what was lost or said wrongly, an empty string if nothing was."""
        write_tree(self.root, self.before)
        sweep_once.cache_clear()
        printed = io.StringIO()
        with (
            contextlib.redirect_stderr(printed),
            _loud_logging(),
            recording(self.root, fail_at=number, fault=fault) as recorder,
        ):
            ran = run(self.config)
        call = recorder.failed
        if call is None:
            return f"{fault} at call {number}: it did not come again"
        try:
            problem = (
                self._said_wrongly(ran, printed.getvalue())
                or self._unreadable()
                or self._missing(ran.events, is_power_failure=False)
                or self._ended_wrongly(ran)
            )
        except Exception as error:  # noqa: BLE001 - a reader that fails is a loss
            problem = f"a reader failed: {error!r}"
        return f"{fault} at call {number} ({call.kind} {call.path}): {problem}" if problem else ""

    def _said_wrongly(self, ran: Ran, printed: str) -> str:
        if "Traceback" in printed or "Logging error" in printed:
            return f"it printed {printed[:300]}"
        for event in ran.events:
            if isinstance(event, WarningRaised) and (w := words_wrong(f"{event.message} {event.advice}", Path("/"))):
                return w
        if isinstance(ran.ending, RunFailed):
            return words_wrong(f"{ran.ending.message} {ran.ending.advice}", self.root)
        return ""

    def _ended_wrongly(self, ran: Ran) -> str:
        if isinstance(ran.ending, RunFinished):
            if not _equal(_tensors(Path(ran.ending.model_path)), self.expected):
                return "it finished with another result"
            return ""
        return self._resume()

    # -- what has to hold

    def _unreadable(self) -> str:
        """Return what is there under its own name and cannot be read; an empty string if there is nothing such."""
        result = Path(self.config.output.destination)
        if result.exists() and result.read_bytes() != OLD_RESULT and not _equal(_tensors(result), self.expected):
            return "the result is damaged"
        for run_dir in run_dirs(Path(self.config.general.workspace_dir)):
            read_record(run_dir)
            for backup in list_backups(run_dir):
                verify(backup)
            for save in (run_dir / "save").glob("*.safetensors"):
                _tensors(save)
            for sample in (run_dir / "samples").glob("*/*.png"):
                with Image.open(sample) as image:
                    image.load()
            if (run_dir / "config.json").exists() and load_file(run_dir / "config.json").problems:
                return "the run's config cannot be read"
        return ""

    def _missing(self, said: Sequence[Event], *, is_power_failure: bool) -> str:
        """Return what was reported as saved and is gone; the history reaches at least to the newest backup."""
        saved = [event for event in said if isinstance(event, BackupSaved)]
        newest = self._newest()
        if saved and (newest is None or newest.step < saved[-1].step):
            return f"the backup of step {saved[-1].step} was reported and is gone"
        for event in said:
            if isinstance(event, ModelSaved) and not Path(event.path).is_file():
                return f"{event.path} was reported and is gone"
            if isinstance(event, ModelSaved) and event.is_final and Path(event.path).read_bytes() == OLD_RESULT:
                return "the result was reported and is the old one"
        has_failed_log = any(isinstance(e, WarningRaised) and "events.jsonl" in e.message for e in said)
        if saved and newest is not None and is_power_failure and not has_failed_log:
            steps = [e.step for e in read_events(newest.run_dir) if isinstance(e, StepFinished)]
            if max(steps, default=0) < saved[-1].step:
                return f"the history of step {saved[-1].step} is gone"
        return ""

    def _newest(self) -> BackupInfo | None:
        return newest_resumable(Path(self.config.general.workspace_dir))

    def _resume(self) -> str:
        """Resume the newest backup, if there is one, and return what is wrong with the result."""
        newest = self._newest()
        if newest is None:
            return ""
        ran = run(self.config, resume_from=newest.path)
        if not isinstance(ran.ending, RunFinished):
            return f"it cannot be resumed: {ran.ending}"
        if ran.ending.outcome == "already_complete":
            destination = Path(self.config.output.destination)
            return "" if destination.read_bytes() != OLD_RESULT else CALLED_COMPLETE
        if not _equal(_tensors(Path(ran.ending.model_path)), self.expected):
            return "the resumed run has another result"
        own = f"-{os.getpid()}-"  # of a program that still runs, and could not remove it: the next program does
        left = [path for path in self.root.rglob(f"*{TEMPORARY_MARK}*") if own not in path.name]
        return f"left for ever: {left}" if left else ""


CALLED_COMPLETE = "the run is called complete, and the result is the old one"


def _tensors(file: Path) -> Tensors:
    """Return copies of a file's tensors, which raises an error if it is damaged."""
    return {name: tensor.clone() for name, tensor in read_safetensors(file)[0].items()}


def _equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@contextlib.contextmanager
def _loud_logging() -> Iterator[None]:
    """Let logging print its own errors, as it does in a program without tests."""
    before, logging.raiseExceptions = logging.raiseExceptions, True
    try:
        yield
    finally:
        logging.raiseExceptions = before


def points_of(calls: Sequence[Call], *, faults_each: int, every: int = 1) -> list[tuple[int, Any]]:
    """Return every n-th call with some of the faults, in turn: each call gets others than the one before it."""
    points = []
    for number in range(1, len(calls) + 1, every):
        for turn in range(faults_each):
            fault = FAULTS[(number // every + turn * 2) % len(FAULTS)]
            if fault == "torn" and calls[number - 1].kind != "write":
                fault = "EIO"
            points.append((number, fault))
    return sorted(set(points))
