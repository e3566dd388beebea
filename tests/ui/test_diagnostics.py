"""Internal errors: logged, shown once, reported with details."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ui.loop.diagnostics import Diagnostics
from ui.loop.interaction import Failure


@pytest.fixture
def diagnostics(tmp_path: Path) -> Iterator[Diagnostics]:
    diagnostics = Diagnostics(tmp_path / "logs")
    diagnostics.install()
    yield diagnostics
    diagnostics.close()


def break_something(diagnostics: Diagnostics) -> None:
    try:
        raise RuntimeError("a test error")
    except RuntimeError as error:
        diagnostics.on_exception(type(error), error, error.__traceback__)


def test_an_error_is_logged_and_shown(diagnostics: Diagnostics, logged_errors: list[str]) -> None:
    reported: list[Failure] = []
    diagnostics.show = reported.append
    logging.getLogger("ui.test").info("the last thing that happened")
    break_something(diagnostics)
    (failure,) = reported
    assert "a test error" in failure.details
    assert "the last thing that happened" in failure.details
    assert "Python 3" in failure.details
    assert diagnostics.log_file is not None
    assert failure.details_file == diagnostics.log_file
    assert "a test error" in diagnostics.log_file.read_text(encoding="utf-8")
    logged_errors.clear()


def test_an_error_during_an_error_dialog_is_only_logged(diagnostics: Diagnostics, logged_errors: list[str]) -> None:
    reported: list[Failure] = []

    def show(failure: Failure) -> None:
        reported.append(failure)
        break_something(diagnostics)

    diagnostics.show = show
    break_something(diagnostics)
    assert (len(reported), len(logged_errors)) == (1, 2)
    logged_errors.clear()


def test_an_error_is_shown_after_the_interrupted_work(diagnostics: Diagnostics, logged_errors: list[str]) -> None:
    reported: list[Failure] = []
    waiting: list[Callable[[], None]] = []
    diagnostics.show, diagnostics.defer = reported.append, waiting.append
    break_something(diagnostics)
    break_something(diagnostics)
    assert (len(reported), len(waiting), len(logged_errors)) == (0, 1, 2)
    waiting.pop()()
    break_something(diagnostics)
    waiting.pop()()
    assert len(reported) == 2
    logged_errors.clear()


def test_an_error_in_a_loop_is_not_shown_for_ever(diagnostics: Diagnostics, logged_errors: list[str]) -> None:
    reported: list[Failure] = []
    diagnostics.show = reported.append
    for _ in range(50):
        break_something(diagnostics)
    assert 1 <= len(reported) == len(logged_errors) <= 10
    logged_errors.clear()


def test_nothing_is_shown_once_the_window_is_closed(diagnostics: Diagnostics, logged_errors: list[str]) -> None:
    waiting: list[Callable[[], None]] = []
    diagnostics.show, diagnostics.defer = lambda _failure: pytest.fail("no dialog"), waiting.append
    break_something(diagnostics)
    diagnostics.close()
    waiting.pop()()
    logged_errors.clear()


def test_an_error_in_a_thread_is_logged_without_a_dialog(diagnostics: Diagnostics, logged_errors: list[str]) -> None:
    diagnostics.show = lambda _failure: pytest.fail("no dialog from a thread")

    def broken() -> None:
        raise ValueError("lost")

    thread = threading.Thread(target=broken, name="lonely")
    thread.start()
    thread.join()
    assert "lonely" in logged_errors[0]
    logged_errors.clear()


def test_an_interrupt_is_not_an_error(diagnostics: Diagnostics, capsys: pytest.CaptureFixture[str]) -> None:
    diagnostics.show = lambda _failure: pytest.fail("no dialog")
    diagnostics.on_exception(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert "KeyboardInterrupt" in capsys.readouterr().err


def test_old_logs_are_deleted(tmp_path: Path) -> None:
    for day in range(10, 30):
        (tmp_path / f"darkroom-2026-01-{day}_00-00-00_000000.log").write_text("old")
    diagnostics = Diagnostics(tmp_path)
    assert len(list(tmp_path.glob("darkroom-*.log"))) == 9
    diagnostics.install()
    diagnostics.close()
    assert len(list(tmp_path.glob("darkroom-*.log"))) == 10


def test_a_folder_that_cannot_be_written_leaves_the_log_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    diagnostics = Diagnostics(tmp_path / "file" / "logs")
    assert diagnostics.log_file is None
    diagnostics.install()
    assert any("Python" in line for line in diagnostics.ring.lines)
    diagnostics.close()


def test_uninstall_restores_the_hooks(tmp_path: Path) -> None:
    before = (sys.excepthook, threading.excepthook, list(logging.getLogger().handlers))
    diagnostics = Diagnostics(tmp_path)
    diagnostics.install()
    diagnostics.close()
    assert (sys.__excepthook__, threading.__excepthook__) == (sys.excepthook, threading.excepthook)
    assert list(logging.getLogger().handlers) == before[2]
