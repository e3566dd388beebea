"""The job that installs packages: what it installs, its progress and log, and Stop. pip is pretended."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from launcher import install
from launcher.messages import Failure, Sentence
from launcher.pip_run import run_pip
from modules.system.errors import DarkroomError
from trainer.commands import CommandDesk, Stop, StopRequested
from trainer.job import Job
from trainer.job_events import JobEvent, JobLines, JobProgress
from trainer.jobs.install import INSTALL, InstallSettings

_PIP = """
import sys
print('Collecting onnxruntime', flush=True)
print('  Downloading onnxruntime-1.23.0.whl (14.0 MB)', flush=True)
if sys.argv[1] == 'hang':
    import threading; threading.Event().wait()
print('Installing collected packages: onnxruntime', flush=True)
"""
SETTINGS = InstallSettings(packages=("onnxruntime",))


def pretend(monkeypatch: pytest.MonkeyPatch, log: Path, mode: str) -> list[list[str]]:
    """Replace the installation by a run of a pretended pip; return the requirements of each call."""
    calls: list[list[str]] = []

    def ensure(task: install.Job, progress: Any) -> dict[str, Any]:
        calls.append(task.wanted)
        if mode == "offline":
            raise Failure(Sentence.NO_NETWORK, log=log, command="start")
        if task.wanted:
            with log.open("w", encoding="utf-8") as file:
                command = [sys.executable, "-c", _PIP, mode]
                run_pip(command, log=file, progress=progress, count_packages=lambda: 0)
        return {}

    monkeypatch.setattr(install, "ensure", ensure)
    monkeypatch.setattr(install.Job, "log", property(lambda _task: log))
    return calls


def test_it_reports_progress_and_the_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls, events = pretend(monkeypatch, tmp_path / "log", "good"), list[JobEvent]()
    done = INSTALL.run(SETTINGS, Job(events.append))
    assert done.message == "Installed onnxruntime."
    assert [len(lines) for lines in calls] == [1]
    assert calls[0][0].startswith("onnxruntime>=")
    lines = [line for event in events if isinstance(event, JobLines) for line in event.lines]
    assert lines[1:] == (tmp_path / "log").read_text().splitlines()[1:]
    assert "Collecting onnxruntime" in lines
    progress = [e for e in events if isinstance(e, JobProgress) and "onnxruntime" in e.what]
    assert progress[-1].share == 0.5, "it is downloaded; the pretended pip installs nothing"


def test_stop_ends_pip_and_removes_what_is_incomplete(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls, desk, begun = pretend(monkeypatch, tmp_path / "log", "hang"), CommandDesk(), threading.Event()

    def stop(event: JobEvent) -> None:
        if isinstance(event, JobProgress) and "onnxruntime" in event.what and not begun.is_set():
            begun.set()
            desk.put(Stop())

    with pytest.raises(StopRequested):
        INSTALL.run(SETTINGS, Job(stop, desk))
    assert begun.is_set()
    assert calls[1:] == [[]]  # the repair of an unfinished installation


def test_a_failure_has_nothing_for_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, tmp_path / "log", "offline")
    with pytest.raises(DarkroomError, match="network cannot be reached") as caught:
        INSTALL.run(SETTINGS, Job(lambda _event: None))
    assert caught.value.advice == "Connect to the internet, and try again."
    assert "start" not in caught.value.message


@pytest.mark.parametrize("name", ["surprise", "pytest", "onnxruntime; rm -rf", "-r"])
def test_only_packages_of_the_program_are_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    calls = pretend(monkeypatch, tmp_path / "log", "good")
    with pytest.raises(DarkroomError, match="does not use a package"):
        INSTALL.run(InstallSettings(packages=(name,)), Job(lambda _event: None))
    assert calls == []
