"""Errors of files, memory and threads: one plain sentence with the path, wherever they come up."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import tracemalloc
from pathlib import Path

import pytest
from PIL import Image

from modules.config.codec import decode, save_file
from modules.system.file_errors import (
    NO_THREAD,
    UnconfirmedError,
    describe_file_error,
    is_failure_of_machine,
    plain_reason,
)
from modules.system.redaction import LogFile
from modules.system.regular_files import FileTooLargeError, read_regular
from tests.builders.full_disk import FullDisk
from trainer.__main__ import main
from trainer.cli import queue
from trainer.run.failure import failure_of
from trainer.step.failures import explain, is_out_of_memory


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "The disk is full: /a/model.safetensors could not be written."),
        (errno.EACCES, "/a/model.safetensors may not be accessed: Permission denied."),
        (errno.EROFS, "/a/model.safetensors is on a disk that can only be read."),
        (errno.EIO, "/a/model.safetensors could not be read or written: the disk reported an error."),
        (errno.ENOTDIR, "/a/model.safetensors cannot be there: a part of its path is a file, not a folder."),
        (errno.EISDIR, "/a/model.safetensors is a folder, not a file."),
        (errno.EEXIST, "/a/model.safetensors exists already, so no folder can be made there."),
        (errno.EFBIG, "/a/model.safetensors could not be written: its disk has no files of this size."),
        (errno.ELOOP, "/a/model.safetensors could not be read or written: Too many levels of symbolic links."),
    ],
)
def test_each_error_is_a_sentence_with_the_path(number: int, words: str) -> None:
    error = OSError(number, os.strerror(number), "/a/model.safetensors")
    assert describe_file_error(error)[0] == words
    assert explain(error)[0] == words
    assert describe_file_error(FileTooLargeError(Path("/a/b"), 9))[0].endswith("it is larger than 9 bytes.")
    assert describe_file_error(OSError(errno.ENOSPC, "full"))[0] == "The disk is full."
    assert describe_file_error(OSError(number, "x", "/a/\udcff"))[0].encode()


@pytest.mark.parametrize(
    ("number", "windows", "path", "words"),
    [
        (errno.EACCES, 32, "C:\\a.safetensors", "C:\\a.safetensors is in use by another program."),
        (errno.EACCES, 5, "C:\\a.safetensors", "C:\\a.safetensors may not be accessed: refused."),
        (errno.ENOENT, 3, "C:\\gone\\a", "C:\\gone\\a does not exist."),
        (errno.ENOENT, 3, f"C:\\{'a' * 300}", "the whole path has 303 characters, of which it allows 259."),
        (errno.EINVAL, 206, f"C:\\{'a' * 300}", "the whole path has 303 characters, of which it allows 259."),
    ],
)
def test_errors_of_windows_say_what_they_mean(number: int, windows: int, path: str, words: str) -> None:
    """A file that ComfyUI has open is no matter of permissions, and a long path does exist."""
    error = OSError(number, "refused", path)
    error.winerror = windows  # type: ignore[attr-defined]
    assert describe_file_error(error)[0].endswith(words)


def test_an_unconfirmed_file_is_not_called_unwritten() -> None:
    message, advice = describe_file_error(UnconfirmedError(errno.EIO, "Input/output error", "/a/b"))
    assert message.startswith("/a/b was written")
    assert "power" in advice


def test_no_memory_is_no_bug_of_the_program() -> None:
    """It was "An unexpected error occurred"."""
    assert is_out_of_memory(RuntimeError("could not create a primitive"))
    message, advice = explain(RuntimeError(NO_THREAD))
    assert "thread" in message
    assert "bug" not in advice


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError(f"{NO_THREAD}!"), OSError(errno.EMFILE, "many", "/a")])
def test_what_a_sentence_explains_prints_no_traceback(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """Without a run's folder, and so without its log, it is printed. Little memory printed pages of it."""
    failed = failure_of(error, None)
    assert "bug" not in failed.advice
    assert caplog.messages
    assert "Traceback" not in caplog.text
    assert "Error" not in caplog.text


def test_a_small_file_needs_little_memory(tmp_path: Path) -> None:
    """Python reserves at once as much as `read` may return: with little memory left no file could be read."""
    file = tmp_path / "a.json"
    file.write_text("{}")
    tracemalloc.start()
    try:
        assert read_regular(file, 2**28) == b"{}"
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    with pytest.raises(FileTooLargeError):
        read_regular(file, 1)


@pytest.mark.parametrize("verb", [("queue", "list"), ("queue", "add", "#demo"), ("queue", "move", "1", "1")])
def test_a_verb_that_meets_a_bad_disk_prints_a_sentence(
    verb: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """80 of 104 injected errors in `queue` were tracebacks."""
    (tmp_path / "state").write_text("a file where a folder has to be")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert main(verb) == 2
    printed = capsys.readouterr().err
    assert str(tmp_path / "state") in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "There is not enough memory."),
        (RuntimeError(NO_THREAD), "The system could not start another thread."),
        (OSError(errno.EIO, "Input/output error", "/a/b"), "/a/b could not be read or written"),
    ],
)
def test_the_boundary_of_the_command_line(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(queue, "_file", fail)
    assert main(["queue", "list"]) == 1
    assert words in capsys.readouterr().err


def test_another_error_is_still_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(queue, "_file", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["queue", "list"])


@pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode there")
@pytest.mark.parametrize("verb", [("check", "--images"), ("check", "--json"), ("doctor",)])
def test_a_name_that_is_not_valid_utf_8_breaks_no_verb(
    verb: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was a UnicodeEncodeError, in seeds as well as in the output."""
    images = tmp_path / "images"
    images.mkdir()
    Image.new("RGB", (64, 64)).save(images / "good.png")
    (images / "good.png").rename(images / os.fsdecode(b"bad\xff.png"))
    tree = {"darkroom_version": 2, "concepts": [{"path": str(images)}], "data": {"resolution_px": [64]}}
    save_file(decode(tree).config, tmp_path / "config.json")
    assert main([verb[0], str(tmp_path / "config.json"), *verb[1:]]) in (0, 1, 2)
    assert "bad\\udcff.png" in capsys.readouterr().out


def test_a_log_on_a_full_disk_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line used to print "--- Logging error ---" with a traceback."""
    monkeypatch.setattr(logging, "raiseExceptions", True)
    disk = FullDisk(monkeypatch, tmp_path, is_full=True)
    handler = LogFile(tmp_path / "log.txt")
    logger = logging.getLogger("darkroom.test.log")
    logger.addHandler(handler)
    try:
        logger.warning("lost")
        disk.is_full = False
        logger.warning("kept")
        (tmp_path / "missing").write_text("")
        broken = LogFile(tmp_path / "missing" / "log.txt")
        logger.addHandler(broken)
        logger.warning("kept, too")
        logger.removeHandler(broken)
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert capsys.readouterr().err == ""
    assert "kept, too" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileNotFoundError(2, "No such file or directory", "a.png"), "No such file or directory"),
        (KeyError("in_channels"), "in_channels is missing"),
        (OSError("[Errno 5] Input/output error"), "Input/output error"),
        (
            RuntimeError("Cannot send a request. Got: ConnectError: [Errno -2] Name or service not known"),
            "the connection failed",
        ),
        (ValueError("httpx.ConnectError: no route to host\nmore"), "no route to host"),
        (TypeError(), "no reason was given"),
        (json.JSONDecodeError("Expecting value", '{\n"a":', 6), "it is not valid JSON (line 2)"),
        (json.JSONDecodeError("Expecting value", "", 0), "it is empty"),
    ],
)
def test_a_reason_has_no_name_or_number_of_pythons(error: Exception, reason: str) -> None:
    assert plain_reason(error) == reason


def test_failures_of_the_machine_differ_from_wrong_paths() -> None:
    numbers = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOENT, errno.EACCES)
    assert [is_failure_of_machine(OSError(number, "")) for number in numbers] == [True] * 5 + [False] * 2
    assert is_failure_of_machine(TimeoutError())
    assert not is_failure_of_machine(None)


def test_a_reason_names_the_file_where_the_sentence_does_not() -> None:
    assert plain_reason(FileNotFoundError(2, "no", "a.png"), names_file=True) == "a.png does not exist"
