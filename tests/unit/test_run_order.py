"""Which run of a workspace is the newest: the one that was started last, whatever the clock said."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.builders.full_disk import FullDisk
from trainer.run_folder.backup import BackupInfo, find_backup, newest_resumable, write_backup
from trainer.run_folder.bundle import newest_run
from trainer.run_folder.records import newest_unfinished, run_dirs, run_dirs_of
from trainer.run_folder.run_dir import new_run_dir
from trainer.run_folder.run_lock import interrupted_run, mark_launch

BEFORE, AFTER = (
    datetime(2026, 10, 25, 2, 50),
    datetime(2026, 10, 25, 2, 5),
)  # a quarter of an hour later, in winter time


def run_at(workspace: Path, now: datetime) -> BackupInfo:
    run_dir = new_run_dir(workspace, now=now)
    return write_backup(run_dir, step=1, epoch=0, now=now, write=lambda folder: (folder / "x").write_text("") and None)


def old_run_at(workspace: Path, name: str) -> BackupInfo:
    """A run of a version that gave no numbers."""
    run_dir = workspace / "runs" / name
    run_dir.mkdir(parents=True)
    return write_backup(run_dir, step=1, epoch=0, now=AFTER, write=lambda folder: None)


def test_the_newest_run_is_the_last_although_the_clock_was_set_back(tmp_path: Path) -> None:
    runs = [run_at(tmp_path, BEFORE), run_at(tmp_path, AFTER)]
    assert [run.run_dir.name[11:] for run in runs] == ["02-50-00", "02-05-00"]
    assert newest_resumable(tmp_path) == runs[1]
    assert find_backup(tmp_path) == runs[1]
    assert run_dirs(tmp_path) == [runs[1].run_dir, runs[0].run_dir]
    assert newest_run(tmp_path) == runs[1].run_dir


def test_a_restarted_launch_resumes_its_last_run_although_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    runs = [run_at(tmp_path, BEFORE), run_at(tmp_path, AFTER)]
    for run in runs:
        mark_launch(run.run_dir)
    assert interrupted_run(tmp_path) == runs[1].path
    for other in ("", "0", "x"):  # of another program, and no reason for a traceback
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", other)
        assert (interrupted_run(tmp_path) is None) == (other != "x")


def test_runs_without_a_number_are_older_and_in_the_order_of_their_names(tmp_path: Path) -> None:
    names = [f"2030-01-01_00-00-00{suffix}" for suffix in ("", "-9", "-10")]
    for name in reversed(names):
        old_run_at(tmp_path, name)
    assert [path.name for path in run_dirs(tmp_path)] == [*reversed(names)]
    new = run_at(tmp_path, AFTER)
    assert run_dirs(tmp_path)[0] == new.run_dir
    assert newest_resumable(tmp_path) == new


@pytest.mark.parametrize("text", ["", "7", "[]", '{"number": "9"}', '{"number": null}', "[" * 100_000])
def test_a_number_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    broken, last = run_at(tmp_path, BEFORE), run_at(tmp_path, AFTER)
    (broken.run_dir / "run.json").write_text(text)
    assert newest_resumable(tmp_path) == last


def test_a_run_that_gets_no_number_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FullDisk(monkeypatch, tmp_path, is_full=True)
    with pytest.raises(OSError, match="No space"):
        new_run_dir(tmp_path, now=AFTER)
    assert list((tmp_path / "runs").iterdir()) == []


def test_runs_of_several_workspaces_are_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    """The clock is set back at 03:00 to 02:00: what began at 02:05 after that is newer than what began at 02:50."""
    here, there = tmp_path / "here", tmp_path / "there"
    first = run_at(here, BEFORE.replace(tzinfo=timezone(timedelta(hours=2)))).run_dir
    second = run_at(there, AFTER.replace(tzinfo=timezone(timedelta(hours=1)))).run_dir
    assert run_dirs_of([here, there, here]) == run_dirs_of([there, here]) == [second, first]
    unfinished = newest_unfinished([here, there])
    assert unfinished is not None
    assert unfinished.run_dir == second


def test_the_order_of_each_workspace_is_kept_among_others(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    runs = [run_at(here, BEFORE), run_at(here, AFTER)]  # without logs, and the later name is older
    other = run_at(there, datetime(2026, 10, 25, 4, 0))
    assert run_dirs_of([here, there]) == [other.run_dir, runs[1].run_dir, runs[0].run_dir]
    assert run_dirs_of([tmp_path / "gone"]) == []
