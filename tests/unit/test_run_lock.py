"""The lock on a run's folder: one run at a time, stale locks recognized, released whatever happens."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from modules.system import file_lock
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT
from tests.builders.full_disk import FullDisk
from trainer.commands import CommandDesk, Pause, Stop
from trainer.run_folder import inbox
from trainer.run_folder.run_lock import LOCK_FILE, RunLock, holder_of

HOLD = "import sys; from pathlib import Path; from trainer.run_folder.run_lock import RunLock; "
HOLD += "lock = RunLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read(); lock.release()"


@contextmanager
def holding_process(run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A second process that holds the lock until its input is closed."""
    command = [sys.executable, "-c", HOLD, str(run_dir)]
    with subprocess.Popen(
        command, cwd=PROGRAM_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def write_lock(run_dir: Path, *, pid: int, started: float, host: str | None = None) -> None:
    content = {"pid": pid, "started": started, "host": host or platform.node()}
    (run_dir / LOCK_FILE).write_text(json.dumps(content))


@pytest.fixture
def no_system_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network drive: the name in the file is all there is."""
    monkeypatch.setattr(file_lock, "_try_lock", lambda file: None)


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with holding_process(tmp_path) as process:
        before = (tmp_path / LOCK_FILE).read_bytes()
        with pytest.raises(DarkroomError, match="in use by another program") as caught:
            RunLock(tmp_path)
        assert str(tmp_path) in caught.value.message
        assert caught.value.advice
        assert (tmp_path / LOCK_FILE).read_bytes() == before
        process.communicate()
    assert not (tmp_path / LOCK_FILE).exists()
    RunLock(tmp_path).release()


@pytest.mark.parametrize("locks", ["system", "none"])
def test_the_lock_of_a_killed_process_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: str
) -> None:
    with holding_process(tmp_path) as process:
        process.kill()
    assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == process.pid
    if locks == "none":
        monkeypatch.setattr(file_lock, "_try_lock", lambda file: None)
    lock = RunLock(tmp_path)
    assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    lock.release()


def test_two_threads_of_a_process_do_not_share_a_folder(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    refused: list[DarkroomError] = []

    def take() -> None:
        try:
            RunLock(tmp_path)
        except DarkroomError as error:
            refused.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert "another run of this program" in refused[0].message
    lock.release()
    lock.release()  # twice does no harm
    assert not list(tmp_path.iterdir())


def test_commands_count_from_the_lock_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page offers Stop as soon as a run has its lock, seconds before the run reads commands: it was lost."""
    monkeypatch.setattr(inbox, "_POLL_SECONDS", 0.01)
    path, desk = tmp_path / inbox.INBOX_FILE, CommandDesk()
    inbox.send(path, Pause())  # to an earlier run
    lock = RunLock(tmp_path)
    inbox.send(path, Stop())
    stopped = threading.Event()
    put = desk.put
    monkeypatch.setattr(desk, "put", lambda command: (put(command), stopped.set()))
    with inbox.open_inbox(path, desk):
        assert stopped.wait(120)
    assert desk.is_stop_requested
    assert not desk._is_paused
    lock.release()


@pytest.mark.usefixtures("no_system_locks")
def test_without_system_locks_a_living_process_is_recognized_by_its_start(tmp_path: Path) -> None:
    with holding_process(tmp_path), pytest.raises(DarkroomError, match="in use by another program"):
        RunLock(tmp_path)
    lock = RunLock(tmp_path)
    with pytest.raises(DarkroomError, match="another run of this program"):
        RunLock(tmp_path)
    lock.release()


@pytest.mark.usefixtures("no_system_locks")
def test_a_reused_process_id_is_recognized_as_stale(tmp_path: Path) -> None:
    parent = psutil.Process(os.getppid())
    write_lock(tmp_path, pid=parent.pid, started=parent.create_time() - 3600.0)
    RunLock(tmp_path).release()
    write_lock(tmp_path, pid=parent.pid, started=parent.create_time())
    with pytest.raises(DarkroomError, match="in use by another program"):
        RunLock(tmp_path)


@pytest.mark.usefixtures("no_system_locks")
def test_a_process_of_another_computer_counts_as_alive(tmp_path: Path) -> None:
    write_lock(tmp_path, pid=1, started=1.0, host="elsewhere")
    with pytest.raises(DarkroomError, match="a program on the computer elsewhere") as caught:
        RunLock(tmp_path)
    assert f"delete {tmp_path / LOCK_FILE}" in caught.value.advice


@pytest.mark.parametrize("content", ["", "{", "[]", "12", '{"pid": "x"}', '{"pid": -5, "started": 1.0, "host": ""}'])
@pytest.mark.parametrize("locks", ["system", "none"])
def test_a_lock_file_that_names_nobody_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, locks: str
) -> None:
    (tmp_path / LOCK_FILE).write_text(content.replace('""', f'"{platform.node()}"'))
    if locks == "none":
        monkeypatch.setattr(file_lock, "_try_lock", lambda file: None)
    RunLock(tmp_path).release()
    assert not list(tmp_path.iterdir())


def test_a_lock_that_cannot_be_written_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(monkeypatch, tmp_path, is_full=True)
    with pytest.raises(OSError, match="No space"):
        RunLock(tmp_path)
    assert not list(tmp_path.iterdir())
    disk.is_full = False
    RunLock(tmp_path).release()


def test_a_released_lock_whose_file_cannot_be_removed_is_free(tmp_path: Path) -> None:
    """After a disk became read-only, the same program could not resume its run until it was restarted."""
    lock = RunLock(tmp_path)
    assert holder_of(tmp_path) is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
        lock.release()
    assert (tmp_path / LOCK_FILE).exists()
    assert holder_of(tmp_path) is None
    RunLock(tmp_path).release()
