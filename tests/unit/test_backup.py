"""Backups on disk: whole or not at all, found by any path that means one, damage reported."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from modules.system.errors import DarkroomError
from modules.system.leftovers import TEMPORARY_MARK
from tests.unit.strategies import garbage
from tests.unit.test_atomic import Calls, Dead
from trainer.run_folder.backup import (
    MANIFEST,
    BackupInfo,
    abandoned_by,
    find_backup,
    list_backups,
    make_newest,
    newest_resumable,
    remove_older,
    verify,
    write_backup,
)
from trainer.run_folder.run_dir import new_run_dir, started_at

NOW = datetime(2026, 3, 4, 5, 6, 7)


def files(folder: Path) -> None:
    (folder / "state.bin").write_bytes(bytes(range(256)))
    (folder / "deep").mkdir()
    (folder / "deep" / "empty.txt").write_text("")
    (folder / "config.json").write_text("{}")


def back_up(run_dir: Path, step: int, write: Callable[[Path], None] = files) -> BackupInfo:
    return write_backup(run_dir, step=step, epoch=step // 10, now=NOW, write=write)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "workspace"


@pytest.fixture
def run_dir(workspace: Path) -> Path:
    return new_run_dir(workspace, now=NOW)


def steps(run_dir: Path) -> list[int]:
    return [b.step for b in list_backups(run_dir)]


# -- the folder of a run


def test_a_run_s_folder_is_never_used_again(workspace: Path) -> None:
    first, second, third = (new_run_dir(workspace, now=NOW) for _ in range(3))
    stamp = "2026-03-04_05-06-07"
    assert [p.name for p in (first, second, third)] == [stamp, f"{stamp}-2", f"{stamp}-3"]
    assert all(p.parent == workspace / "runs" and p.is_dir() for p in (first, second, third))
    shutil.rmtree(first)
    first.write_text("a file in the way")
    assert new_run_dir(workspace, now=NOW).name == "2026-03-04_05-06-07-4"


def test_a_run_s_folder_tells_when_the_run_started(workspace: Path) -> None:
    assert [started_at(new_run_dir(workspace, now=NOW)) for _ in range(2)] == [NOW, NOW]
    assert started_at(workspace / "my favourite run") is None


def test_a_workspace_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        new_run_dir(tmp_path / "file", now=NOW)


# -- writing


def test_a_backup_lists_every_file_with_its_size_and_hash(run_dir: Path) -> None:
    backup = back_up(run_dir, 20)
    now_us = int(NOW.timestamp()) * 1_000_000
    assert backup == BackupInfo(run_dir / "backup" / "step-00000020", 20, 2, "2026-03-04T05:06:07", now_us)
    assert backup.run_dir == run_dir
    manifest = json.loads((backup.path / MANIFEST).read_text())
    assert sorted(manifest["files"]) == ["config.json", "deep/empty.txt", "state.bin"]
    assert manifest["files"]["state.bin"]["bytes"] == 256
    assert list_backups(run_dir) == [backup]
    verify(backup)


def test_a_backup_that_fails_leaves_no_trace(run_dir: Path) -> None:
    back_up(run_dir, 10)

    def fail(folder: Path) -> None:
        files(folder)
        raise OSError("No space left on device")

    for step in (10, 20):
        with pytest.raises(OSError, match="No space"):
            back_up(run_dir, step, fail)
    assert steps(run_dir) == [10]
    assert [p.name for p in (run_dir / "backup").iterdir()] == ["step-00000010"]


def test_a_backup_of_the_same_step_takes_the_place_of_the_first(run_dir: Path) -> None:
    back_up(run_dir, 10)
    again = back_up(run_dir, 10, lambda folder: (folder / "only.txt").write_text("new") and None)
    assert list_backups(run_dir) == [again]
    assert again.path.name == "step-00000010"
    assert sorted(p.name for p in again.path.iterdir()) == [MANIFEST, "only.txt"]
    assert [p.name for p in (run_dir / "backup").iterdir()] == ["step-00000010"]


def test_of_two_backups_of_a_step_one_is_complete_whenever_the_program_dies(tmp_path: Path) -> None:
    """The first used to be moved aside before the second had its name."""
    for fail_at in range(1, 200):
        run_dir = tmp_path / str(fail_at)
        back_up(run_dir, 10)
        with pytest.MonkeyPatch.context() as patch:
            calls = Calls(patch, fail_at=fail_at, is_dead=True)
            with contextlib.suppress(Dead):
                back_up(run_dir, 10)
        assert 10 in steps(run_dir), fail_at
        verify(list_backups(run_dir)[-1])
        back_up(run_dir, 20)
        assert steps(run_dir)[-1] == 20
        assert not [p for p in (run_dir / "backup").iterdir() if TEMPORARY_MARK in p.name]
        if not calls.has_failed:
            return
    raise AssertionError("it never came through")


def test_an_old_backup_that_is_being_looked_at_stays_and_the_new_one_counts(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where an open file cannot be removed."""
    back_up(run_dir, 10)

    def refuse(path: Path, **kwargs: object) -> None:
        if Path(path).name == "step-00000010":
            raise PermissionError(13, "in use", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    again = back_up(run_dir, 10)
    assert list_backups(run_dir)[-1] == again
    verify(again)


def test_what_a_killed_run_had_begun_is_cleared_away(run_dir: Path) -> None:
    back_up(run_dir, 10)
    unfinished = run_dir / "backup" / f".step-00000015{TEMPORARY_MARK}0123abcd"
    files(unfinished.joinpath() if unfinished.mkdir() is None else unfinished)
    assert steps(run_dir) == [10]
    back_up(run_dir, 20)
    assert not unfinished.exists()


# -- listing


def damaged(backup: BackupInfo, how: str) -> None:
    match how:
        case "no manifest":
            (backup.path / MANIFEST).unlink()
        case "half a manifest":
            text = (backup.path / MANIFEST).read_text()
            (backup.path / MANIFEST).write_text(text[: len(text) // 2])
        case "empty manifest":
            (backup.path / MANIFEST).write_text("")
        case "binary manifest":
            (backup.path / MANIFEST).write_bytes(b"\xff\xfe\x00")
        case "missing file":
            (backup.path / "state.bin").unlink()
        case "missing folder":
            shutil.rmtree(backup.path / "deep")
        case "shorter file":
            (backup.path / "state.bin").write_bytes(b"short")
        case "longer file":
            (backup.path / "state.bin").write_bytes(b"x" * 300)
        case "folder for a file":
            (backup.path / "state.bin").unlink()
            (backup.path / "state.bin").mkdir()


WAYS = ["no manifest", "half a manifest", "empty manifest", "binary manifest", "missing file", "missing folder",
        "shorter file", "longer file", "folder for a file"]  # fmt: skip


@pytest.mark.parametrize("how", WAYS)
def test_an_incomplete_backup_is_never_offered(workspace: Path, run_dir: Path, how: str) -> None:
    older, newest = back_up(run_dir, 10), back_up(run_dir, 20)
    damaged(newest, how)
    assert list_backups(run_dir) == [older]
    assert newest_resumable(workspace) == older
    for path in (run_dir, workspace):
        assert find_backup(path) == older
    with pytest.raises(DarkroomError, match="no complete backup"):
        find_backup(newest.path)


@given(manifest=garbage)
def test_any_manifest_is_complete_or_none(tmp_path_factory: pytest.TempPathFactory, manifest: Any) -> None:
    """A manifest of another shape used to raise."""
    run_dir = tmp_path_factory.mktemp("run")
    folder = run_dir / "backup" / "step-00000001"
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert list_backups(run_dir) == []
    with pytest.raises(DarkroomError):
        verify(BackupInfo(folder, 1, 0, ""))


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2}, {"format": None}, {"step": "10"}, {"step": None}, {"epoch": "x"}, {"created": 5}, {"files": []},
        {"files": {"state.bin": 5}}, {"files": {"state.bin": {"bytes": 256}}}, {"files": {"state.bin": {"sha256": ""}}},
        {"files": {"a\x00b": {"bytes": 1, "sha256": ""}}},
    ],
    ids=str,
)  # fmt: skip
def test_a_manifest_of_another_shape_is_none(run_dir: Path, change: dict[str, Any]) -> None:
    backup = back_up(run_dir, 10)
    manifest = json.loads((backup.path / MANIFEST).read_text())
    (backup.path / MANIFEST).write_text(json.dumps({**manifest, **change}))
    assert list_backups(run_dir) == []


def test_backups_are_listed_in_the_order_they_were_written(run_dir: Path) -> None:
    """They used to go by step: a run resumed from an older backup then lost what it wrote."""
    for step in (10, 20, 5, 12, 7):
        back_up(run_dir, step)
    assert steps(run_dir) == [10, 20, 5, 12, 7]
    assert find_backup(run_dir).step == 7
    back_up(run_dir, 10)  # again
    assert steps(run_dir) == [20, 5, 12, 7, 10]


def test_a_clock_that_is_set_back_changes_no_order(run_dir: Path) -> None:
    for step, hour in ((10, 5), (20, 3), (15, 4)):
        write_backup(run_dir, step=step, epoch=0, now=NOW.replace(hour=hour), write=files)
    assert steps(run_dir) == [10, 20, 15]


def as_older_program(backup: BackupInfo, **change: Any) -> None:
    """Leave the manifest as programs before this order wrote it."""
    manifest = json.loads((backup.path / MANIFEST).read_text())
    del manifest["written_us"]
    (backup.path / MANIFEST).write_text(json.dumps({**manifest, **change}))


def test_backups_of_older_programs_go_by_second_and_then_by_step(run_dir: Path) -> None:
    """A hundred million has nine digits, and sorted by name it came before ninety-nine."""
    for step in (99_999_999, 100_000_000, 5):
        as_older_program(back_up(run_dir, step))
    assert steps(run_dir) == [5, 99_999_999, 100_000_000]
    verify(list_backups(run_dir)[-1])
    back_up(run_dir, 3)
    assert steps(run_dir)[-1] == 3
    as_older_program(back_up(run_dir, 4), created="2026-03-04T05:06:08")
    assert steps(run_dir) == [5, 99_999_999, 100_000_000, 3, 4], "an older program wrote one again"
    back_up(run_dir, 2)
    assert steps(run_dir)[-1] == 2


@pytest.mark.parametrize("created", ["", "yesterday", "0001-01-01T00:00:00", "9999-12-31T23:59:59"])
def test_a_date_that_is_none_is_no_reason_to_fail(run_dir: Path, created: str) -> None:
    as_older_program(back_up(run_dir, 10), created=created)
    back_up(run_dir, 5)
    assert steps(run_dir) == [10, 5]


# -- resuming from an older backup


def test_the_abandoned_branch_is_what_was_written_later_or_goes_further(run_dir: Path) -> None:
    backups = {step: back_up(run_dir, step) for step in (5, 10, 15, 20)}
    assert abandoned_by(backups[20]) == []
    assert [b.step for b in abandoned_by(backups[10])] == [15, 20]
    backups[12] = back_up(run_dir, 12)
    assert [b.step for b in abandoned_by(backups[12])] == [15, 20]
    assert [b.step for b in abandoned_by(backups[20])] == [12]


@pytest.mark.parametrize("is_old", [False, True])
def test_a_backup_that_is_resumed_from_counts_as_the_newest(run_dir: Path, is_old: bool) -> None:
    backups = [back_up(run_dir, step) for step in (5, 10, 15, 20)]
    if is_old:
        for backup in backups:
            as_older_program(backup)
    resumed = make_newest(find_backup(backups[1].path), now=NOW)
    assert steps(run_dir) == [5, 15, 20, 10]
    assert find_backup(run_dir) == resumed
    assert resumed.created == backups[1].created
    verify(resumed)
    remove_older(run_dir, keep=1)
    assert steps(run_dir) == [10]


def test_the_newest_is_left_as_it_is(run_dir: Path) -> None:
    back_up(run_dir, 20)
    newest = back_up(run_dir, 10)
    before = (newest.path / MANIFEST).stat().st_mtime_ns
    assert make_newest(newest, now=NOW) == newest
    assert (newest.path / MANIFEST).stat().st_mtime_ns == before


def test_other_things_in_the_folder_are_no_backups(run_dir: Path) -> None:
    back_up(run_dir, 10)
    (run_dir / "backup" / "step-notes.txt").write_text("x")
    (run_dir / "backup" / "step-00000011").mkdir()
    (run_dir / "backup" / "mine").mkdir()
    assert steps(run_dir) == [10]
    assert list_backups(run_dir / "nowhere") == []


# -- finding


def test_the_newest_run_with_a_backup_counts(workspace: Path) -> None:
    runs = [new_run_dir(workspace, now=NOW) for _ in range(11)]
    assert newest_resumable(workspace) is None
    oldest = back_up(runs[0], 500)
    assert newest_resumable(workspace) == oldest
    middle = back_up(runs[8], 10)  # ...-9
    newest = back_up(runs[9], 10)  # ...-10, which sorted as text comes before -9
    assert newest_resumable(workspace) == newest
    later = new_run_dir(workspace, now=NOW.replace(second=8))
    assert newest_resumable(workspace) == newest
    assert newest_resumable(workspace) != middle
    last = back_up(later, 1)
    assert newest_resumable(workspace) == last


def test_strange_things_beside_the_runs(workspace: Path, run_dir: Path) -> None:
    backup = back_up(run_dir, 10)
    (workspace / "runs" / "zzz").write_text("a file")
    (workspace / "runs" / "zz").mkdir()
    assert newest_resumable(workspace) == backup
    assert newest_resumable(workspace / "nowhere") is None
    assert newest_resumable(run_dir) is None


def test_every_path_that_means_a_backup(workspace: Path, run_dir: Path) -> None:
    older, newest = back_up(run_dir, 10), back_up(run_dir, 20)
    assert find_backup(older.path) == older
    assert find_backup(newest.path) == newest
    assert find_backup(run_dir) == newest
    assert find_backup(workspace) == newest


@pytest.mark.parametrize("path", ["nowhere", "empty", "file", "x" * 300, "a\x00b"])
def test_a_path_that_means_none_is_an_error_with_advice(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(DarkroomError, match="no complete backup") as caught:
        find_backup(tmp_path / path)
    assert caught.value.advice


# -- damage


def test_a_flipped_byte_in_any_file_is_found(run_dir: Path) -> None:
    backup = back_up(run_dir, 10)
    for name in ("state.bin", "config.json"):
        file = backup.path / name
        content = bytearray(file.read_bytes())
        for place in (0, len(content) // 2, len(content) - 1):
            flipped = bytearray(content)
            flipped[place] ^= 1
            file.write_bytes(flipped)
            assert list_backups(run_dir) == [backup], "sizes alone do not tell"
            with pytest.raises(DarkroomError, match=name) as caught:
                verify(backup)
            assert "older backup" in caught.value.advice
        file.write_bytes(content)
    verify(backup)


@pytest.mark.parametrize("how", WAYS)
def test_verify_finds_what_listing_finds(run_dir: Path, how: str) -> None:
    backup = back_up(run_dir, 10)
    damaged(backup, how)
    with pytest.raises(DarkroomError, match="damaged"):
        verify(backup)


# -- clearing out


@pytest.mark.parametrize(
    ("keep", "left"), [(0, [1, 2, 3, 4]), (1, [4]), (2, [3, 4]), (4, [1, 2, 3, 4]), (9, [1, 2, 3, 4])]
)
def test_the_newest_are_kept(run_dir: Path, keep: int, left: list[int]) -> None:
    for step in (1, 2, 3, 4):
        back_up(run_dir, step)
    remove_older(run_dir, keep=keep)
    assert steps(run_dir) == left


@pytest.mark.parametrize(("keep", "left"), [(1, [12]), (2, [20, 12]), (3, [15, 20, 12])])
def test_the_backup_just_written_is_never_removed(run_dir: Path, keep: int, left: list[int]) -> None:
    """It used to be the first to go where a run was resumed from an older one and stopped earlier."""
    for step in (5, 10, 15, 20, 12):
        back_up(run_dir, step)
    remove_older(run_dir, keep=keep)
    assert steps(run_dir) == left


def test_an_incomplete_one_does_not_count_as_kept(run_dir: Path) -> None:
    for step in (1, 2, 3):
        back_up(run_dir, step)
    damaged(list_backups(run_dir)[-1], "no manifest")
    remove_older(run_dir, keep=1)
    assert steps(run_dir) == [2]
