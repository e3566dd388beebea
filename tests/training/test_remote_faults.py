"""Faults around a run on another machine: nothing is lost or doubled, and each is reported in one sentence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT
from tests.builders.runs import run
from tests.builders.ssh import SSHD, WHY_NOT, Server, accept_key, machine_environment, ssh_server
from tests.training.test_remote import assert_same_log, assert_same_result, config_of, processes_of, run_dir_of
from trainer.events import Event, RunFinished, RunStarted, StepFinished, WarningRaised
from trainer.launch import RunRequest
from trainer.remote import inputs
from trainer.remote.connection import Connection, ConnectionLostError
from trainer.remote.following import follow, train_there
from trainer.remote.line import Line
from trainer.remote.record import Remote, RemotesFile
from trainer.remote.trees import Tree, stat_file
from trainer.run_folder.records import read_record

pytestmark = [pytest.mark.skipif(SSHD is None, reason=WHY_NOT), pytest.mark.full]


@pytest.fixture
def server(tmp_path: Path, home_dir: Path) -> Iterator[Server]:
    (tmp_path / "server").mkdir()
    with ssh_server(tmp_path / "server", tmp_path / "machine", machine_environment(home_dir)) as running:
        accept_key(running)
        yield running


@pytest.fixture(scope="module")
def expected(tiny_sd: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of the run on this machine."""
    folder = tmp_path_factory.mktemp("here")
    finished = run(config_of(folder, tiny_sd, images))
    assert isinstance(finished.ending, RunFinished), finished.ending
    return folder / "out" / "lora.safetensors"


@pytest.fixture
def config(tiny_sd: Path, images: Path, tmp_path: Path) -> Config:
    return config_of(tmp_path / "there", tiny_sd, images)


REQUESTS = frozenset(
    {"missing", "put", "part", "finish", "tree", "write", "start", "follow", "files", "read", "digest"}
)
"""The requests of a run from the first file that is sent to the last that is fetched."""


def test_a_network_that_is_lost_at_every_request_changes_nothing(
    server: Server, config: Config, expected: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once before each kind of request, and once after it, when its answer is lost."""
    monkeypatch.setattr("trainer.remote.trees._PART_BYTES", 20_000)
    monkeypatch.setattr("trainer.remote.line._WAITS_SECONDS", (0.0,))
    cuts: list[tuple[str, str]] = []

    class Cut(Connection):
        """A connection that is cut at each request that no earlier one was cut at."""

        def call(self, request: str, content: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
            if ("before", request) not in cuts and request in REQUESTS:
                cuts.append(("before", request))
                assert server.cut()
            answer = super().call(request, content, **arguments)
            if ("after", request) not in cuts and request in REQUESTS:
                cuts.append(("after", request))
                assert server.cut()
                raise ConnectionLostError("the answer was lost")
            return answer

    events: list[Event] = []
    train_there(server.remote, RunRequest(config), Line(events.append), connect=Cut)
    assert isinstance(events[-1], RunFinished), events[-1]
    assert sorted(cuts) == sorted((when, request) for when in ("before", "after") for request in REQUESTS)
    lost = [e for e in events if isinstance(e, WarningRaised) and "was lost" in e.message]
    assert len(lost) == len(cuts) == 22
    assert_same_result(expected, config)
    assert_same_log(config)


@pytest.mark.parametrize("is_new_key", [False, True])
def test_a_server_that_dies_is_waited_for_and_one_with_another_key_is_not(
    server: Server, config: Config, expected: Path, is_new_key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run continues meanwhile; with another key nothing is sent before the user has accepted it."""
    monkeypatch.setattr("trainer.remote.line._WAITS_SECONDS", (0.05,))
    events: list[Event] = []
    num_refused = 0

    def connect(remote: Remote) -> Connection:
        nonlocal num_refused
        try:
            return Connection(remote)
        except ConnectionLostError:
            num_refused += 1
            if num_refused == 3:
                server.new_host_key() if is_new_key else server.start()
            raise

    def kill_server(event: Event) -> None:
        events.append(event)
        if isinstance(event, RunStarted) and not num_refused:
            server.stop()

    line = Line(kill_server)
    if is_new_key:
        with pytest.raises(DarkroomError, match="The host key of box has changed"):
            train_there(server.remote, RunRequest(config), line, connect=connect)
        accept_key(server)
        follow(server.remote, run_dir_of(config), Line(events.append))
    else:
        train_there(server.remote, RunRequest(config), line, connect=connect)
    assert num_refused >= 3
    assert len([e for e in events if isinstance(e, WarningRaised) and "was lost" in e.message]) == 1
    assert isinstance(events[-1], RunFinished), events[-1]
    assert_same_result(expected, config)
    assert_same_log(config)


def test_a_window_that_dies_leaves_the_run_alone(
    server: Server, config: Config, expected: Path, tmp_path: Path
) -> None:
    """The process that follows the run for it notices, and ends; the next window follows it again."""
    RemotesFile().add(server.remote)
    save_file(config, tmp_path / "config.json")
    command = [sys.executable, "-m", "trainer", "train", str(tmp_path / "config.json"), "--on", "box", "--json-lines"]
    with subprocess.Popen(command, cwd=PROGRAM_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as here:
        assert here.stdout is not None
        assert here.stdin is not None
        assert any('"StepFinished"' in line for line in here.stdout)
        here.stdin.close()  # as its end does
        here.stdout.read()
    assert here.returncode == 0
    assert read_record(run_dir_of(config)).status.value in ("elsewhere", "finished")
    events: list[Event] = []
    follow(server.remote, run_dir_of(config), Line(events.append))
    assert isinstance(events[-1], RunFinished), events[-1]
    assert_same_result(expected, config)
    assert_same_log(config)


def test_a_run_keeps_the_version_that_it_was_started_with(
    server: Server, config: Config, expected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another commit here follows it, and the same one is not sent again."""
    events: list[Event] = []
    programs: list[Path] = []

    def leave(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepFinished) and not programs:
            programs.extend({Path(process.cwd()) for process in processes_of(config)})
            line.leave()

    line = Line(leave)
    train_there(server.remote, RunRequest(config), line)
    [program] = programs
    assert program.parent == Path(server.remote.folder) / "trees"
    (tmp_path / "changed.py").write_text("# another commit")
    whole = inputs.program_tree()
    changed = Tree((*whole.files, *stat_file(tmp_path / "changed.py", "trainer/changed.py")))
    monkeypatch.setattr("trainer.remote.starting.program_tree", lambda: changed)
    follow(server.remote, run_dir_of(config), Line(events.append))
    assert isinstance(events[-1], RunFinished), events[-1]
    assert_same_result(expected, config)
    assert_same_log(config)
    assert not (program / "trainer" / "changed.py").exists()
