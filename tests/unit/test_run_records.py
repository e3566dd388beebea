"""What the folders of runs say: how each ended, how long it took, its best validation; deleting and undoing it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.settings.edit import set_path
from modules.system.errors import DarkroomError
from trainer.event_lines import to_line
from trainer.events import (
    BackupSaved,
    Event,
    ModelSaved,
    PhaseChanged,
    RunFailed,
    RunFinished,
    RunStarted,
    SampleReady,
    StepFinished,
    ValidationFinished,
)
from trainer.preflight import check
from trainer.preflight.resume import problems_of_other_runs
from trainer.run_folder.backup import newest_resumable, write_backup
from trainer.run_folder.fork import Origin, fork_into, write_origin
from trainer.run_folder.records import (
    newest_unfinished,
    read_record,
    run_dirs,
    running_in,
    stamp_of,
    timed_events,
)
from trainer.run_folder.run_lock import RunLock
from trainer.run_folder.trash import contents_of, delete_run, empty_trash, restore_run, trash_bytes

NOON = datetime(2026, 3, 4, 12, 0, 0)


def started(run_dir: Path, first_step: int = 0) -> RunStarted:
    return RunStarted(str(run_dir), "sd", "denoise", "adapter", 2, 40, first_step, 10, 2, 99, ("unet",), "cpu", 1)


def step(number: int) -> StepFinished:
    return StepFinished(1, 2, number, 20, number, 40, 0.2, 0.3, 0.5, 2.0, 9.0)


def validated(number: int, loss: float, best: float, best_step: int) -> ValidationFinished:
    return ValidationFinished(number, loss, best_loss=best, best_step=best_step)


def write_run(workspace: Path, name: str, timed: Sequence[tuple[float, Event]], *, has_backup: bool = False) -> Path:
    """Write the folder of a run whose events happened at some minutes after noon."""
    run_dir = workspace / "runs" / name
    run_dir.mkdir(parents=True)
    lines = [to_line(event, time=(NOON + timedelta(minutes=at)).isoformat()) for at, event in timed]
    (run_dir / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    config, _ = set_path(Config(), "model.base_model", "models/photo.safetensors")
    save_file(config, run_dir / "config.json")
    if has_backup:
        write_backup(run_dir, step=20, epoch=1, now=NOON, write=lambda folder: (folder / "a").write_bytes(b"1234"))  # type: ignore[func-returns-value]
    return run_dir


@pytest.fixture
def is_training() -> Iterator[Callable[[Path], None]]:
    """Let this process hold the lock of a run until the test ends."""
    with ExitStack() as stack:
        yield lambda run_dir: stack.callback(RunLock(run_dir).release) and None


def test_a_machine_is_paid_for_the_preparation_too_but_not_between_attempts(tmp_path: Path) -> None:
    events: list[tuple[float, Event]] = [
        (15, started(tmp_path)),
        (45, RunFinished("stopped", 2, "Stopped.")),
        (5000, started(tmp_path, 2)),
        (5045, RunFinished("finished", 3, "Done.")),
    ]
    run_dir = write_run(tmp_path, "2026-03-04_12-00-00", events)
    assert read_record(run_dir).machine_seconds == 75 * 60, "of a version that did not note when it began"
    (run_dir / "run.json").write_text(json.dumps({"number": 1, "begun": NOON.timestamp()}))
    assert read_record(run_dir).seconds == 75 * 60
    assert read_record(run_dir).machine_seconds == 90 * 60


def test_a_finished_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "2026-03-04_12-00-00"
    timed = [
        (0, PhaseChanged("loading", "a model")),
        (1, started(run_dir)),
        (2, step(1)),
        (3, validated(10, 0.5, 0.5, 10)),
        (3, validated(20, 0.4, 0.4, 20)),
        (4, validated(30, 0.6, 0.4, 20)),
        (4, SampleReady(30, 0, "a cat", "cat.png")),
        (5, step(40)),
        (6, ModelSaved(40, "out/lora.safetensors", "kohya", True)),
        (6, RunFinished("finished", 40, "Finished after 40 steps.")),
    ]
    assert write_run(tmp_path, run_dir.name, timed) == run_dir
    record = read_record(run_dir)
    assert (record.status, record.message) == ("finished", "Finished after 40 steps.")
    assert (record.step, record.total_steps, record.seconds) == (40, 40, 300.0)
    assert (record.best_loss, record.best_step, record.num_samples) == (0.4, 20, 1)
    assert record.outputs == (Path("out/lora.safetensors"),)
    assert record.base_model == "models/photo.safetensors"
    assert record.started == NOON
    assert record.size_bytes == sum(f.stat().st_size for f in run_dir.iterdir())
    assert [at for at, _ in timed_events(run_dir)][:2] == [NOON.timestamp(), NOON.timestamp() + 60]


@pytest.mark.parametrize(
    ("last", "ending"),
    [
        ((), "crashed"),
        ((RunFinished("stopped", 5, "Stopped."),), "stopped"),
        ((RunFinished("stopped_early", 5, "Stopped early."),), "stopped_early"),
        ((RunFailed("No memory."),), "failed"),
        ((RunFailed("No memory."), PhaseChanged("loading")), "crashed"),
    ],
)
def test_how_a_run_ended(tmp_path: Path, last: tuple[Event, ...], ending: str) -> None:
    run_dir = tmp_path / "runs" / "one"
    write_run(tmp_path, "one", [(0, started(run_dir)), (1, step(5)), *((2, event) for event in last)])
    assert read_record(run_dir).status == ending


def lost_and_resumed(run_dir: Path) -> list[tuple[float, Event]]:
    """A run that was killed after step 30 and resumed from step 20."""
    return [
        (0, started(run_dir)),
        (1, step(10)),
        (1, validated(10, 0.5, 0.5, 10)),
        (1, SampleReady(10, 0, "a cat", "10.png")),
        (2, step(20)),
        (3, step(30)),
        (3, validated(30, 0.3, 0.3, 30)),
        (3, SampleReady(30, 0, "a cat", "30.png")),
        (9, started(run_dir, first_step=20)),
    ]


def test_what_was_lost_before_a_resume_does_not_count(tmp_path: Path) -> None:
    """The best validation used to be that of a model that no longer was."""
    lost = lost_and_resumed(tmp_path / "runs" / "one")
    resumed: list[tuple[float, Event]] = [(10, step(30)), (10, validated(30, 0.6, 0.5, 10))]
    for number, timed in enumerate((lost, [*lost, *resumed])):
        record = read_record(write_run(tmp_path, f"run {number}", timed))
        assert (record.best_loss, record.best_step, record.num_samples) == (0.5, 10, 1)
        assert record.step == 20 + 10 * number


def test_a_fork_has_the_curves_without_what_was_lost(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "one"
    timed: list[tuple[float, Event]] = [*lost_and_resumed(run_dir), (10, step(30)), (10, validated(30, 0.6, 0.5, 10))]
    write_run(tmp_path, "one", timed)
    backup = write_backup(run_dir, step=30, epoch=1, now=NOON, write=lambda folder: None)
    fork_into(tmp_path / "runs" / "two", backup)
    copied = [event for _, event in timed_events(tmp_path / "runs" / "two")]
    assert [e.step for e in copied if isinstance(e, StepFinished)] == [10, 20, 30]
    assert [(e.step, e.loss) for e in copied if isinstance(e, ValidationFinished)] == [(10, 0.5), (30, 0.6)]


def test_the_time_between_the_attempts_does_not_count(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "one"
    first = [(0, started(run_dir)), (10, step(5)), (10, BackupSaved(5, "step-5"))]  # then it was killed
    second = [(100, PhaseChanged("loading")), (101, started(run_dir, 5)), (103, step(8))]
    write_run(tmp_path, "one", [*first, *second, (104, RunFinished("finished", 8, "Finished."))])
    record = read_record(run_dir)
    assert record.seconds == 60 * (10 + 3)
    assert record.step == 8


def test_a_folder_without_a_log_is_a_run_that_crashed(tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    record = read_record(tmp_path / "runs" / "one")
    assert (record.status, record.step, record.facts) == ("crashed", 0, None)


def test_a_run_that_trains_is_found_by_its_lock_and_said_before_another_starts(
    tmp_path: Path, is_training: Callable[[Path], None]
) -> None:
    first, second = (write_run(tmp_path, f"2026-03-0{n}_00-00-00", []) for n in (1, 2))
    config, _ = set_path(Config(), "general.workspace_dir", str(tmp_path))
    assert not list(problems_of_other_runs(config, None))
    before = stamp_of(first)
    is_training(first)
    assert stamp_of(first) != before
    assert read_record(first).status == "running"
    assert [(path, holder.pid) for path, holder in running_in(tmp_path)] == [(first, os.getpid())]
    for run_dir in (None, second):
        [problem] = problems_of_other_runs(config, run_dir)
        assert (problem.severity, first.name in problem.message) == ("warning", True)
        assert problem.remedy == "queue"
    [problem] = problems_of_other_runs(config, first)
    assert problem.severity == "error"
    assert "in use by another run of this program" in problem.message
    message = "Another run is training at the moment"
    assert any(message in p.message for p in check(config).problems), "the window and the command line report it"


def test_a_run_that_ended_unexpectedly_is_offered_while_it_is_the_newest(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    crashed = write_run(here, "2026-03-01_00-00-00", [(0, step(3))], has_backup=True)
    assert newest_unfinished([here, there, here]) == read_record(crashed)
    write_run(there, "2026-03-02_00-00-00", [(0, step(3))])  # without a backup it cannot be resumed
    unfinished = newest_unfinished([here, there])
    assert unfinished is not None
    assert unfinished.run_dir == crashed
    write_run(here, "2026-03-03_00-00-00", [(0, RunFinished("finished", 3, "Finished."))])
    assert newest_unfinished([here, there]) is None


def test_deleted_runs_are_in_the_trash_until_it_is_emptied(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, "2026-03-01_00-00-00", [(0, step(3))], has_backup=True)
    other = write_run(tmp_path, "2026-03-02_00-00-00", [])
    contents = contents_of(run_dir)
    assert contents.size_bytes == sum(size for _, size in contents.parts) == read_record(run_dir).size_bytes
    assert dict(contents.parts).keys() == {"backup", "rest"}
    deleted = delete_run(run_dir)
    assert run_dirs(tmp_path) == [other]
    assert newest_resumable(tmp_path) is None
    assert trash_bytes([tmp_path]) == contents.size_bytes
    assert restore_run(deleted) == run_dir
    assert contents_of(run_dir) == contents
    assert trash_bytes([tmp_path]) == 0
    first = delete_run(run_dir)
    write_run(tmp_path, run_dir.name, [])
    assert delete_run(run_dir).place != first.place
    empty_trash([tmp_path, tmp_path / "no such workspace"])
    assert trash_bytes([tmp_path]) == 0
    assert run_dirs(tmp_path) == [other]


def test_a_run_that_trains_is_not_deleted(tmp_path: Path, is_training: Callable[[Path], None]) -> None:
    run_dir = write_run(tmp_path, "one", [])
    is_training(run_dir)
    with pytest.raises(DarkroomError, match="trains at the moment"):
        delete_run(run_dir)
    with pytest.raises(DarkroomError, match="not a run"):
        delete_run(tmp_path)
    assert run_dir.is_dir()


def test_a_fork_says_where_it_comes_from(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, "one", [])
    assert read_record(run_dir).origin is None
    write_origin(run_dir, Origin(tmp_path / "runs" / "zero", 7))
    assert read_record(run_dir).origin == Origin(tmp_path / "runs" / "zero", 7)
    (run_dir / "forked_from.json").write_text("{")
    assert read_record(run_dir).origin is None
