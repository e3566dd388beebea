"""Writes that leave the old or the new, whatever happens in between."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from modules.system import atomic
from modules.system.atomic import atomic_file, atomic_folder, flush_folder, remove_folder, write_bytes, write_text
from modules.system.file_errors import UnconfirmedError
from modules.system.leftovers import TEMPORARY_MARK, put_back, sweep, sweep_once, temporary_path

CHANGING = ("mkdir", "fsync", "replace", "rename")
REMOVING = ("unlink", "rmdir")
NOBODY = 1 << 22  # no system has so many processes


KILLED = """
import os, sys
from pathlib import Path
from modules.system.atomic import atomic_file, atomic_folder

with atomic_folder(Path(sys.argv[1])) as folder, atomic_file(Path(sys.argv[2])) as file:
    (folder / "half").write_text("half")
    file.write_text("half")
    os.kill(os.getpid(), 9)
"""

posix = pytest.mark.skipif(sys.platform == "win32", reason="it has neither these permissions nor links for everybody")


class Dead(BaseException):
    """The process is gone: nothing after it happens either."""


class Calls:
    """Counts the calls that change the disk, and fails at one of them; a dead one fails at all that follow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fail_at: int = -1, is_dead: bool = False) -> None:
        self.count = 0
        self.has_failed = False
        self._fail_at = fail_at
        self._is_dead = is_dead
        if is_dead:  # its number is nobody's, and what follows is another program
            monkeypatch.setattr(os, "getpid", lambda: NOBODY)
        for name in CHANGING + (REMOVING if is_dead else ()):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))
        monkeypatch.setattr(atomic, "exchange", self._counted(atomic.exchange))

    def _counted(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if self._is_dead and self.has_failed:
                raise Dead
            self.count += 1
            if self.count == self._fail_at:
                self.has_failed = True
                sweep_once.cache_clear()
                paths = [str(a) for a in args if isinstance(a, str | Path)]  # the system names those, not open files
                raise Dead if self._is_dead else OSError(errno.EIO, "Input/output error", *paths[:1])
            return real(*args, **kwargs)

        return call


def write_file(destination: Path, content: str) -> None:
    with atomic_file(destination) as temporary:
        temporary.write_text(content)


def write_folder(destination: Path, content: str) -> None:
    with atomic_folder(destination) as folder:
        (folder / "one.txt").write_text(content)
        (folder / "deep").mkdir()
        (folder / "deep" / "two.txt").write_text(content)


def fail_in(
    writer: Callable[[Path], AbstractContextManager[Path]], destination: Path, error: type[BaseException]
) -> None:
    with writer(destination) as temporary:
        (temporary / "one.txt" if temporary.is_dir() else temporary).write_text("half")
        raise error


def read(destination: Path) -> str | None:
    """What is there: nothing, a content, or the word "torn"."""
    if destination.is_dir():
        files = {f.relative_to(destination).as_posix(): f.read_text() for f in destination.rglob("*") if f.is_file()}
        contents = set(files.values())
        return contents.pop() if files.keys() == {"one.txt", "deep/two.txt"} and len(contents) == 1 else "torn"
    return destination.read_text() if destination.exists() else None


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob("*") if TEMPORARY_MARK in p.name]


KINDS = {"file": write_file, "folder": write_folder}


@pytest.mark.parametrize("write", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("has_old", [True, False])
def test_an_error_at_any_call_leaves_the_old_or_the_new_and_nothing_else(
    tmp_path: Path, write: Callable[[Path, str], None], has_old: bool
) -> None:
    for fail_at in range(1, 100):
        home = tmp_path / str(fail_at)
        destination = home / "thing"
        if has_old:
            write(destination, "old")
        raised: OSError | None = None
        with pytest.MonkeyPatch.context() as patch:
            calls = Calls(patch, fail_at=fail_at)
            try:
                write(destination, "new")
            except OSError as error:
                raised = error
        is_unconfirmed = isinstance(raised, UnconfirmedError)
        assert read(destination) == ("new" if is_unconfirmed or raised is None else "old" if has_old else None), fail_at
        if raised is not None:
            assert TEMPORARY_MARK not in str(raised)
            assert str(destination) in str(raised) or raised.filename in (str(home), str(tmp_path)), fail_at
        if is_unconfirmed:  # the old folder may get its name back in a power failure: it stays until the next start
            sweep(home, are_writers_gone=True)
        assert leftovers(home) == []
        if not calls.has_failed:
            assert fail_at > 3, "the calls were not counted"
            return
    raise AssertionError("it never came through")


@pytest.mark.parametrize("write", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("has_old", [True, False])
def test_a_death_at_any_call_leaves_the_old_or_the_new(
    tmp_path: Path, write: Callable[[Path, str], None], has_old: bool
) -> None:
    for fail_at in range(1, 200):
        destination = tmp_path / str(fail_at) / "thing"
        if has_old:
            write(destination, "old")
        with pytest.MonkeyPatch.context() as patch:
            calls = Calls(patch, fail_at=fail_at, is_dead=True)
            with contextlib.suppress(Dead):
                write(destination, "new")
        found = read(destination)
        assert found in ("old" if has_old else None, "new"), fail_at
        write(destination, "newer")
        assert read(destination) == "newer"
        if not calls.has_failed:
            assert found == "new"
            return
    raise AssertionError("it never came through")


@pytest.mark.parametrize("write", KINDS.values(), ids=KINDS)
def test_an_old_one_is_replaced(tmp_path: Path, write: Callable[[Path, str], None]) -> None:
    destination = tmp_path / "a" / "b" / "thing"
    write(destination, "old")
    write(destination, "new")
    assert read(destination) == "new"
    assert [p.name for p in destination.parent.iterdir()] == ["thing"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_of_the_writer_leaves_no_trace(tmp_path: Path, error: type[BaseException]) -> None:
    write_file(tmp_path / "file", "old")
    write_folder(tmp_path / "folder", "old")
    with pytest.raises(error):
        fail_in(atomic_file, tmp_path / "file", error)
    with pytest.raises(error):
        fail_in(atomic_folder, tmp_path / "folder", error)
    assert read(tmp_path / "file") == "old"
    assert read(tmp_path / "folder") == "old"
    assert leftovers(tmp_path) == []


def test_an_interruption_between_the_two_renames_puts_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only errors of the system used to; a Ctrl-C lost the folder."""
    monkeypatch.setattr(atomic, "exchange", lambda *_: False)
    write_folder(tmp_path / "thing", "old")
    real_rename = os.rename

    def interrupted(source: Path, target: Path) -> None:
        if Path(target).name == "thing" and "old-" not in Path(source).name:
            raise KeyboardInterrupt
        real_rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "thing", "new")
    assert read(tmp_path / "thing") == "old"
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("finds", ["reader", "writer", "failing writer"])
def test_a_death_between_two_renames_where_names_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finds: str
) -> None:
    """As on Windows: neither name was there until the next backup of the same step."""
    monkeypatch.setattr(atomic, "exchange", lambda *_: False)
    places = []
    for fail_at in range(1, 40):
        destination = tmp_path / str(fail_at) / "thing"
        write_folder(destination, "old")
        with pytest.MonkeyPatch.context() as patch:
            calls = Calls(patch, fail_at=fail_at, is_dead=True)
            with contextlib.suppress(Dead):
                write_folder(destination, "new")
        if read(destination) is None:
            places.append(fail_at)
            match finds:
                case "reader":
                    put_back(destination)
                case "writer":
                    write_file(destination.with_name("other"), "content")
                case _:
                    with pytest.raises(ZeroDivisionError):
                        fail_in(atomic_folder, destination, ZeroDivisionError)
        assert read(destination) in ("old", "new")
        if not calls.has_failed:
            break
    assert places, "there is a gap that this test has to meet"


def test_what_a_living_neighbour_writes_is_not_touched(tmp_path: Path) -> None:
    living = [temporary_path(tmp_path / "thing"), temporary_path(tmp_path / "thing", is_old=True)]
    of_others = tmp_path / f".thing{TEMPORARY_MARK}0123abcd-77-0123abcd"  # another machine, a moment ago
    for folder in (*living, of_others):
        folder.mkdir()
    write_folder(tmp_path / "other", "new")
    assert sweep(tmp_path) == []
    assert all(folder.is_dir() for folder in (*living, of_others))
    day_ago = of_others.stat().st_mtime - 25 * 3600
    os.utime(of_others, (day_ago, day_ago))
    assert [found.path for found in sweep(tmp_path)] == [of_others]


def test_what_a_killed_program_left_is_removed_by_the_next_one_which_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Gigabytes stayed for ever, unless the same backup was written again."""
    killed = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "thing"), str(tmp_path / "model")])
    assert killed.wait() == -9
    left = leftovers(tmp_path)
    assert len(left) == 2
    write_text(tmp_path / "other", "x")
    assert leftovers(tmp_path) == []
    assert sorted(r.getMessage().split(" (")[0] for r in caplog.records) == sorted(str(tmp_path / n) for n in left)


def test_a_link_is_followed_only_where_the_user_named_it(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "new", follows_link=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    write_text(tmp_path / "link", "newer")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o664])
def test_a_file_keeps_its_permissions_from_the_first_byte_on(tmp_path: Path, mode: int) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(mode)
    with atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("new")
        assert not temporary.stat().st_mode & 0o077 & ~mode & ~0o044 or mode & 0o004
        assert mode & 0o004 or not temporary.stat().st_mode & 0o007
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
    assert (tmp_path / "file").read_text() == "new"


def test_an_old_link_to_a_folder_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    write_folder(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to("real")
    write_folder(tmp_path / "link", "new")
    assert (read(tmp_path / "link"), read(tmp_path / "real")) == ("new", "old")
    assert leftovers(tmp_path) == []


def test_names_of_any_length_can_be_written(tmp_path: Path) -> None:
    for name in ("n" * 255, "ä" * 127):
        write_text(tmp_path / name, "content")
        assert (tmp_path / name).read_text() == "content"


def test_a_removed_folder_is_never_half_there(tmp_path: Path) -> None:
    for fail_at in range(1, 20):
        folder = tmp_path / str(fail_at) / "thing"
        write_folder(folder, "old")
        with pytest.MonkeyPatch.context() as patch:
            calls = Calls(patch, fail_at=fail_at, is_dead=True)
            with contextlib.suppress(Dead):
                remove_folder(folder)
        assert read(folder) in ("old", None), fail_at
        if not calls.has_failed:
            return
    raise AssertionError("it never came through")


def test_a_writer_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    write_file(tmp_path / "thing", "old")
    with pytest.raises(FileNotFoundError), atomic_file(tmp_path / "thing"):
        pass
    assert read(tmp_path / "thing") == "old"


def test_a_folder_in_the_way_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "thing").mkdir()
    with pytest.raises(OSError, match="thing"):
        write_file(tmp_path / "thing", "new")
    assert leftovers(tmp_path) == []


def test_a_file_in_the_way_of_a_parent_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="file"):
        write_text(tmp_path / "file" / "thing", "new")


def test_texts_and_bytes(tmp_path: Path) -> None:
    write_text(tmp_path / "text", "zwei\nZeilen: ä猫\n")
    assert (tmp_path / "text").read_bytes() == "zwei\nZeilen: ä猫\n".encode()
    write_bytes(tmp_path / "bytes", bytes(range(256)))
    assert (tmp_path / "bytes").read_bytes() == bytes(range(256))


@pytest.mark.skipif(sys.platform == "win32", reason="folders are not flushed there")
@pytest.mark.parametrize(("number", "is_told"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_drive_that_cannot_flush_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_told: bool
) -> None:
    """A file saved to such a drive was there, and an error was raised all the same."""

    def fail(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    if is_told:
        with pytest.raises(OSError, match=os.strerror(number)):
            flush_folder(tmp_path)
    else:
        flush_folder(tmp_path)


def test_the_new_content_is_flushed_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    for name in ("fsync", "replace", "rename"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: (events.append(name), real(*a))[1])
    write_file(tmp_path / "file", "new")
    assert events[:2] == ["fsync", "replace"]
    events.clear()
    write_folder(tmp_path / "folder", "new")
    assert events.index("rename") >= 4  # two files and two folders
    shutil.rmtree(tmp_path / "folder")
