"""Ctrl-C and a request of the system to end: each verb stops as it promises, and leaves the handlers as they were."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from modules.config.codec import save_file
from modules.config.schema import Config
from trainer import commands
from trainer.__main__ import main
from trainer.cli import queue as queue_verb
from trainer.cli import remote, runs, signals
from trainer.cli.signals import at_signal
from trainer.commands import CommandDesk
from trainer.events import Event, RunFailed, RunFinished
from trainer.job import Job
from trainer.jobs import diff
from trainer.launch import RunRequest
from trainer.remote.line import Line
from trainer.remote.record import Remote, RemotesFile
from trainer.web.serving import Address

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def send(number: int) -> None:
    """Send a signal to this process; Python's handler has run afterwards."""
    os.kill(os.getpid(), number)
    signal.getsignal(number)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[dict[int, Any]]:
    """Handlers of a shell's usual process, which have to be there again after each test."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    for number, handler in usual.items():
        signal.signal(number, handler)
    yield usual
    after = {number: signal.getsignal(number) for number in NUMBERS}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == usual


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_signal_stops_and_the_second_ends_at_once(number: int) -> None:
    stops: list[str] = []
    with at_signal(lambda: stops.append("stop")):
        send(number)
        assert stops == ["stop"]
        assert signal.getsignal(number) == (signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)
        others = [other for other in (signal.SIGINT, signal.SIGTERM) if other != number]
        for other in others:
            send(other)
        assert stops == ["stop"], "the same request, reported once more"


def test_ctrl_break_of_windows_stops_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console there has both; a process in a group of its own gets this one alone."""
    monkeypatch.setattr(signals, "_BREAK", signal.SIGUSR1)
    stops: list[str] = []
    with at_signal(lambda: stops.append("stop")):
        send(signal.SIGUSR1)
        assert stops == ["stop"]
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_the_second_signal_does_what_the_verb_has_chosen() -> None:
    calls: list[str] = []
    with at_signal(lambda: calls.append("stop"), again=lambda: calls.append("again")):
        for _ in range(3):
            send(signal.SIGTERM)
    assert calls == ["stop", "again", "again"]


def test_handlers_are_restored_after_an_error_and_what_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with pytest.raises(ZeroDivisionError), at_signal(lambda: 1 / 0):
        send(signal.SIGINT)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_another_thread_than_the_main_one_changes_nothing(handlers: dict[int, Any]) -> None:
    seen: list[Any] = []

    def work() -> None:
        with at_signal(lambda: None):
            seen.extend(signal.getsignal(number) for number in NUMBERS)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == list(handlers.values())


ENDING = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@ENDING
def test_a_run_stops_cleanly(number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def execute(_request: RunRequest, *, emit: Callable[[Event], None], desk: CommandDesk) -> None:
        send(number)
        assert desk.is_stop_requested
        assert signal.getsignal(number) == signal.SIG_DFL, "the second one ends at once"
        emit(RunFinished("stopped", 3, "Stopped after 3 steps."))

    monkeypatch.setattr(runs, "import_engine", lambda **options: None)
    monkeypatch.setitem(sys.modules, "trainer.run.execute", SimpleNamespace(execute_guarded=execute))
    assert main(["train", "#demo"]) == 130
    assert "Stopped after 3 steps." in capsys.readouterr().err


def test_several_processes_stop_at_the_first_and_their_launcher_ends_at_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    class Launcher:
        """The launcher, as far as the verb needs it."""

        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> Launcher:
            return self

        def __exit__(self, *_: object) -> None: ...
        def terminate(self) -> None:
            calls.append("launcher")

        def wait(self) -> int:
            send(signal.SIGINT)
            send(signal.SIGINT)
            return 1

    monkeypatch.setattr(runs, "_pass_on_stop", lambda launcher: calls.append("processes"))
    monkeypatch.setattr(runs, "num_processes", lambda config: 2)
    monkeypatch.setattr(subprocess, "Popen", Launcher)
    save_file(Config(), tmp_path / "config.json")
    assert main(["train", str(tmp_path / "config.json")]) == 1
    assert calls == ["processes", "launcher"]


@ENDING
@pytest.mark.parametrize("machine", ["", "box"])
def test_the_queue_stops_a_run_of_this_computer_and_leaves_one_that_is_elsewhere(
    number: int, machine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[object] = []
    child = SimpleNamespace(send=calls.append, close=lambda: calls.append("left"))

    def events(_child: object) -> Iterator[Event]:
        send(number)
        yield RunFailed("The process has ended.") if machine else RunFinished("stopped", 3, "Stopped.")

    monkeypatch.setattr(queue_verb, "launch_child", lambda request: child)
    monkeypatch.setattr(queue_verb, "_events", events)
    RemotesFile().add(Remote("box", "203.0.113.7"))
    assert main(["queue", "add", "#demo", *(["--on", machine] if machine else [])]) == 0
    assert main(["queue", "run", *(["--on", machine] if machine else [])]) == (0 if machine else 130)
    assert calls == (["left"] if machine else [commands.Stop()])
    assert ("The run continues on box." in capsys.readouterr().err) == bool(machine)


@ENDING
def test_following_a_run_elsewhere_ends_and_the_run_continues(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def follow(_remote: Remote, _run_dir: Path, line: Line) -> None:
        send(number)
        assert line.is_left.is_set()

    monkeypatch.setattr(remote, "follow", follow)
    monkeypatch.setattr(remote, "_run_at", lambda path: (tmp_path, None, Remote("box", "203.0.113.7")))
    assert main(["remote", "attach", str(tmp_path)]) == 0
    assert f"The run continues on box. Follow it with: remote attach {tmp_path}\n" in capsys.readouterr().err


@ENDING
def test_the_page_in_the_browser_ends(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = uvicorn.Server.on_tick

    async def on_tick(self: uvicorn.Server, counter: int) -> bool:
        send(number)
        return await plain(self, counter)

    monkeypatch.setattr(uvicorn.Server, "on_tick", on_tick)
    assert main(["web", "--port", "0"]) == 0
    monkeypatch.setattr(Address, "code", lambda _self: send(number))  # while the address is printed
    assert main(["web", "--port", "0", "--host", "0.0.0.0"]) == 0


@pytest.mark.parametrize("times", [1, 2])
@ENDING
def test_a_job_stops_where_it_reports_progress_or_at_once(
    number: int, times: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(_self: object, _settings: object, job: Job) -> None:
        for _ in range(times):
            send(number)
        assert times == 1, "the second one has not ended it"
        job.progress("reading", 0, 1)

    monkeypatch.setattr("trainer.jobs.spec.JobSpec.run", work)
    assert main(["convert", "a.safetensors", "b.safetensors"]) == 130
    assert capsys.readouterr().err == "Stopped. Nothing was written.\n"


def test_ctrl_c_in_a_verb_that_prints_a_text_ends_it_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was a traceback."""
    monkeypatch.setattr(diff, "read_config", lambda *_: send(signal.SIGINT))
    assert main(["diff", "#demo", "#demo"]) == 130
    assert capsys.readouterr().err == "Stopped.\n"
