"""Runs on another machine over SSH: a real server on loopback, whose machine is a folder with this Python."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.formats.safetensors_io import read_safetensors
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT, queue_file
from modules.system.secrets import with_secret
from modules.system.secrets_file import load_secrets, save_secrets
from tests.builders.configs import small_config
from tests.builders.runs import Ran, assert_equal_tensors, run
from tests.builders.ssh import SSHD, WHY_NOT, Server, accept_key, machine_environment, ssh_server
from tests.builders.wheels import write_wheel
from tests.training.test_choosing import config_in as choosing_config
from trainer.__main__ import main
from trainer.commands import BackupNow, Pause, Resume, SampleNow, Stop
from trainer.events import (
    BackupSaved,
    DownloadProgress,
    Event,
    ModelSaved,
    PhaseChanged,
    RunFailed,
    RunFinished,
    RunStarted,
    SampleReady,
    StepFinished,
    WarningRaised,
)
from trainer.launch import RunRequest
from trainer.remote import connection
from trainer.remote.connection import Connection
from trainer.remote.following import fetch_now, follow, resume_run_there, train_there
from trainer.remote.line import Line
from trainer.remote.record import RemotesFile
from trainer.remote.starting import prepare
from trainer.remote.trees import Tree, files_below
from trainer.rollout_events import ChoicesWanted
from trainer.run_folder.choices import Answer, all_requests, answer, open_requests, pairs_dir
from trainer.run_folder.elsewhere import elsewhere_of
from trainer.run_folder.event_log import read_events
from trainer.run_folder.inbox import INBOX_FILE, send
from trainer.run_folder.records import read_record, run_dirs
from trainer.run_queue.file import QueueFile

pytestmark = [pytest.mark.skipif(SSHD is None, reason=WHY_NOT), pytest.mark.full]
PROMPT = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 1, "sampler": "ddim"}
NUM_STEPS = 6


@pytest.fixture
def server(tmp_path: Path, home_dir: Path) -> Iterator[Server]:
    """A machine whose host key is accepted, with the user's folders of the tests."""
    (tmp_path / "server").mkdir()
    with ssh_server(tmp_path / "server", tmp_path / "machine", machine_environment(home_dir)) as running:
        accept_key(running)
        yield running


@pytest.fixture(scope="module")
def expected(tiny_sd: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of the run on this machine."""
    folder = tmp_path_factory.mktemp("here")
    finished: Ran = run(config_of(folder, tiny_sd, images))
    assert isinstance(finished.ending, RunFinished), finished.ending
    return folder / "out" / "lora.safetensors"


@pytest.fixture
def config(tiny_sd: Path, images: Path, tmp_path: Path) -> Config:
    return config_of(tmp_path / "there", tiny_sd, images)


def config_of(folder: Path, model: Path, images: Path) -> Config:
    return small_config(folder, model=model, images=images, sampling={"prompts": [PROMPT], "at_end": True})


def assert_same_result(expected: Path, config: Config) -> None:
    one, other = (read_safetensors(Path(path))[0] for path in (expected, config.output.destination))
    assert_equal_tensors(one, other)


def run_dir_of(config: Config) -> Path:
    [run_dir] = run_dirs(Path(config.general.workspace_dir))
    return run_dir


def assert_same_log(config: Config) -> None:
    """Assert that the log here has every event of the log there, each once."""
    run_dir = run_dir_of(config)
    elsewhere = elsewhere_of(run_dir)
    assert elsewhere is not None
    [there] = run_dirs(Path(elsewhere.folder) / "workspace")
    here = [type(event).__name__ for event in read_events(run_dir)]
    assert here == [type(event).__name__ for event in read_events(there)]
    assert [e.step for e in read_events(run_dir) if isinstance(e, StepFinished)] == [1, 2, 3, 4, 5, 6]


def processes_of(config: Config) -> list[psutil.Process]:
    """The processes that train a run on its machine."""
    elsewhere = elsewhere_of(run_dir_of(config))
    assert elsewhere is not None
    return [p for p in psutil.process_iter() if any(elsewhere.folder in word for word in words_of(p))]


def words_of(process: psutil.Process) -> list[str]:
    """The command line of a process; empty once it has ended."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_a_run_is_trained_there_as_here(server: Server, config: Config, expected: Path, tmp_path: Path) -> None:
    """A stored token is in the environment of its process, and nowhere else there."""
    events: list[Event] = []
    token, given = "hf_0123456789abcdef", list[str | None]()
    save_secrets(with_secret(load_secrets().secrets, "huggingface_token", token))

    def look(event: Event) -> None:
        events.append(event)
        if isinstance(event, RunStarted):
            given.extend(process.environ().get("HF_TOKEN") for process in processes_of(config))
            assert not any(token in word for process in psutil.process_iter() for word in words_of(process))

    train_there(server.remote, RunRequest(config), Line(look))
    assert given
    assert set(given) == {token}
    written = [file for place in ("machine", "there") for file in (tmp_path / place).rglob("*") if file.is_file()]
    assert not any(token.encode() in file.read_bytes() for file in written)
    assert isinstance(events[-1], RunFinished), events[-1]
    assert_same_result(expected, config)
    run_dir = run_dir_of(config)
    assert read_record(run_dir).status.is_complete
    assert [e.step for e in events if isinstance(e, StepFinished)] == [1, 2, 3, 4, 5, 6]
    assert all(Path(e.path).is_file() for e in events if isinstance(e, SampleReady | ModelSaved))
    assert [type(e) for e in read_events(run_dir)][-1] is RunFinished
    for text in ("events.jsonl", "recipe.json", "results.json", "config.json"):
        assert str(tmp_path / "machine") not in (run_dir / text).read_text(), text


class CutOnRead(Connection):
    """A connection that is cut when the result is fetched."""

    interrupt: Callable[[], int]
    num_cuts = 0

    def call(self, request: str, content: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
        if request == "read" and "/result/" in arguments["path"] and not CutOnRead.num_cuts:
            CutOnRead.num_cuts = CutOnRead.interrupt()
        return super().call(request, content, **arguments)


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_connection_that_is_cut_in_each_phase_changes_nothing(
    server: Server, config: Config, expected: Path, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    """Also one that is not closed, but swallows everything: the client notices that after a while."""
    interrupt = server.freeze if is_silent else server.cut
    impatient = ("ServerAliveInterval=1", "ServerAliveCountMax=1")  # the first value of an option counts
    monkeypatch.setattr(connection, "_OPTIONS", (*impatient, *connection._OPTIONS))
    monkeypatch.setattr("trainer.remote.trees._PART_BYTES", 20_000)
    cuts: list[str] = []

    def emit(event: Event) -> None:
        for phase, kind in (("upload", DownloadProgress), ("training", RunStarted)):
            if isinstance(event, kind) and phase not in cuts and not (phase == "upload" and event.done_mb < 6.5):
                cuts.append(phase)
                assert interrupt()
        events.append(event)

    events: list[Event] = []
    CutOnRead.interrupt, CutOnRead.num_cuts = staticmethod(interrupt), 0
    train_there(server.remote, RunRequest(config), Line(emit), connect=CutOnRead)
    assert isinstance(events[-1], RunFinished), events[-1]
    assert cuts == ["upload", "training"]
    assert CutOnRead.num_cuts
    lost = [e for e in events if isinstance(e, WarningRaised) and "was lost" in e.message]
    assert len(lost) == 3
    assert_same_result(expected, config)
    assert_same_log(config)


def test_a_killed_follower_loses_nothing(server: Server, config: Config, expected: Path, tmp_path: Path) -> None:
    RemotesFile().add(server.remote)
    save_file(config, tmp_path / "config.json")
    command = [sys.executable, "-m", "trainer", "train", str(tmp_path / "config.json"), "--on", "box", "--json-lines"]
    with subprocess.Popen(command, cwd=PROGRAM_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as here:
        assert here.stdout is not None
        assert any('"StepFinished"' in line for line in here.stdout)
        here.kill()
    run_dir = run_dir_of(config)
    assert read_record(run_dir).status.value == "elsewhere"
    events: list[Event] = []
    follow(server.remote, run_dir, Line(events.append))
    assert isinstance(events[-1], RunFinished), events[-1]
    assert_same_result(expected, config)
    assert_same_log(config)
    events.clear()
    follow(server.remote, run_dir, Line(events.append))  # once more: there is nothing new
    assert [type(e) for e in events] == [RunFinished]


def test_a_queue_trains_on_two_machines_and_follows_again_after_its_death(
    server: Server, tiny_sd: Path, images: Path, expected: Path, tmp_path: Path
) -> None:
    RemotesFile().add(server.remote)
    configs = [config_of(tmp_path / name, tiny_sd, images) for name in ("here", "there", "later")]
    for config, machine in zip(configs, ("", "box", "box"), strict=True):
        save_file(config, tmp_path / "config.json")
        assert main(["queue", "add", str(tmp_path / "config.json"), f"--on={machine}"]) == 0
    assert main(["queue", "run"]) == 0  # while the other machine begins
    file = QueueFile(queue_file())
    assert file.read().item(1).state == "finished"
    while not file.read().item(2).run_dir:
        assert file.runner_on("box") is not None, file.read()
        time.sleep(0.1)
    worker = psutil.Process(holder.pid if (holder := file.runner_on("box")) else 0)
    for process in (worker, *worker.children(recursive=True)):
        process.kill()
    psutil.wait_procs([worker])
    assert [item.state for item in file.read().items] == ["finished", "interrupted", "waiting"]
    assert main(["queue", "run", "--on", "box"]) == 0
    assert [item.state for item in file.read().items] == ["finished"] * 3
    for config in configs:
        assert_same_result(expected, config)
    assert_same_log(configs[1])


def test_a_killed_run_is_reported_and_resumed_there(server: Server, config: Config, expected: Path) -> None:
    """Its backups are fetched as they are written; the command after a run waits until one has finished."""
    config = replace_backups(config)
    remote = replace(server.remote, fetches_backups=True, command_after="echo ended > ended")
    ended = Path(remote.folder) / "ended"
    events: list[Event] = []

    def kill(event: Event) -> None:
        events.append(event)
        if isinstance(event, BackupSaved) and event.step == 2:
            for process in processes_of(config):
                process.send_signal(signal.SIGKILL)

    train_there(remote, RunRequest(config), Line(kill))
    assert isinstance(events[-1], RunFailed), events[-1]
    assert events[-1].is_crash
    assert any("keeps running, because the backups" in e.message for e in events if isinstance(e, WarningRaised))
    assert not ended.exists()
    run_dir = run_dir_of(config)
    assert read_record(run_dir).status.value == "crashed"
    assert 2 in [backup.step for backup in read_record(run_dir).backups]
    resume_run_there(remote, run_dir, Line(events.append))
    assert isinstance(events[-1], RunFinished), events[-1]
    assert ended.read_text() == "ended\n"
    assert_same_result(expected, config)
    here, elsewhere = read_record(run_dir).backups, elsewhere_of(run_dir)
    assert elsewhere is not None
    [there] = run_dirs(Path(elsewhere.folder) / "workspace")
    assert [backup.step for backup in here] == [backup.step for backup in read_record(there).backups]
    shutil.rmtree(run_dir / "backup")
    with Connection(remote) as connection:
        fetch_now(connection, run_dir, ("backup",))
    assert read_record(run_dir).backups == here
    backup = here[-1]
    assert run(replace_epochs(config, 3), resume_from=backup.path).finished.step == NUM_STEPS * 3 // 2


def replace_backups(config: Config) -> Config:
    every = config.backup.every.model_copy(update={"unit": "step", "n": 2})
    return config.model_copy(update={"backup": config.backup.model_copy(update={"every": every})})


def replace_epochs(config: Config, epochs: int) -> Config:
    return config.model_copy(update={"training": config.training.model_copy(update={"epochs": epochs})})


def test_commands_work_as_here(server: Server, config: Config) -> None:
    """Sample now and Back up now, Pause and its end, Stop; two followers; through the inbox of the run's folder."""
    config = replace_epochs(config, 200)
    events: list[Event] = []
    seen: set[type[Event]] = set()

    def act(event: Event) -> None:
        events.append(event)
        is_first, inbox = type(event) not in seen, run_dir_of(config) / INBOX_FILE if len(events) > 9 else None
        seen.add(type(event))
        if inbox is None:
            return
        match event:
            case StepFinished() if is_first:
                send(inbox, SampleNow())
                send(inbox, BackupNow())
                with pytest.raises(DarkroomError, match="in use by another run"):
                    follow(server.remote, run_dir_of(config), Line(events.append))
            case BackupSaved() if is_first:
                send(inbox, Pause())
            case PhaseChanged(phase="paused"):
                send(inbox, Resume())
                send(inbox, Stop())

    train_there(server.remote, RunRequest(config), Line(act))
    assert isinstance(events[-1], RunFinished), events[-1]
    assert events[-1].outcome == "stopped"
    assert {SampleReady, BackupSaved} <= seen
    assert any(isinstance(e, PhaseChanged) and e.phase == "paused" for e in events)


def test_a_person_chooses_here_for_a_run_there(server: Server, tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = replace_epochs(choosing_config(tmp_path / "there", tiny_sd, images), 1)
    events: list[Event] = []

    def act(event: Event) -> None:
        events.append(event)
        if isinstance(event, ChoicesWanted):
            for request in open_requests(run_dir_of(config)):
                answer(request, Answer("chosen", 0, 1))

    train_there(server.remote, RunRequest(config), Line(act))
    assert isinstance(events[-1], RunFinished), events[-1]
    assert events[-1].outcome == "finished"
    num_asked = sum(e.num_open for e in events if isinstance(e, ChoicesWanted))
    assert num_asked
    run_dir = run_dir_of(config)
    assert not all_requests(run_dir)
    assert list((pairs_dir(run_dir) / "chosen").glob("*.png"))


def test_without_a_python_the_launcher_makes_an_environment_there(
    server: Server, config: Config, tmp_path: Path
) -> None:
    """This machine has no package index, which is one sentence; the environment is that of the program."""
    with pytest.raises(DarkroomError, match=r"could not be installed on box: .*pip could not install") as failed:
        train_there(replace(server.remote, python=""), RunRequest(config), Line(lambda event: None))
    assert "--python" in failed.value.advice
    assert (tmp_path / "machine" / "environment" / "complete").is_file()


def test_wheels_are_sent_to_a_machine_without_an_index(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a program that needs one small package; the real ones are hundreds of megabytes."""
    program, wheels = tmp_path / "program", tmp_path / "wheels"
    wheels.mkdir()
    write_wheel(wheels, "smallest", "1.0")
    for name, text in (
        ("pyproject.toml", '[project]\nname = "small"\ndependencies = ["smallest>=1"]\n'),
        ("constraints.txt", "smallest==1.0\n"),
        ("trainer/__init__.py", ""),
        ("trainer/__main__.py", "import smallest, sys\nprint(smallest.__file__, sys.prefix)\n"),
    ):
        (program / name).parent.mkdir(parents=True, exist_ok=True)
        (program / name).write_text(text)
    shutil.copytree(PROGRAM_ROOT / "launcher", program / "launcher", ignore=shutil.ignore_patterns("__pycache__"))
    tree = Tree(tuple(files_below(program)))
    monkeypatch.setattr("trainer.remote.starting.program_tree", lambda: tree)
    remote = replace(server.remote, python="", wheels_dir=str(wheels))
    for _ in range(2):
        events: list[Event] = []
        with Connection(remote) as connection:
            prepared = prepare(connection, Config(), emit=events.append, check=lambda: None)
            settings = [f"{name}={value}" for name, value in prepared.environment.items()]
            command = ["env", *settings, *prepared.python, "train"]
            _, printed = connection.call("command", arguments=command, cwd=prepared.folder, seconds=60)
        package, prefix = printed.decode().split()
        assert package.startswith(f"{prefix}/lib")
        assert Path(prefix).resolve() == Path(remote.folder) / "environment"
        assert any(isinstance(event, PhaseChanged) and "packages" in event.detail for event in events)
    (wheels / "smallest-1.0-py3-none-any.whl").unlink()
    with Connection(remote) as connection, pytest.raises(DarkroomError, match="There are no wheels"):
        prepare(connection, Config(), emit=events.append, check=lambda: None)


def test_what_the_machine_refuses_leaves_no_folder(server: Server, config: Config) -> None:
    concept = config.concepts[0].model_copy(update={"path": "/nowhere/images"})
    events: list[Event] = []
    train_there(server.remote, RunRequest(config.model_copy(update={"concepts": (concept,)})), Line(events.append))
    assert isinstance(events[-1], RunFailed), events[-1]
    assert events[-1].message.startswith("On box: ")
    assert "/nowhere/images" in events[-1].message
    assert not run_dirs(Path(config.general.workspace_dir))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A function that mounts a small disk, always at the same folder; only an administrator can."""
    folder, mounted = tmp_path / "disk", list[int]()
    folder.mkdir()

    def mount(megabytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
        if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("A small disk cannot be mounted here: that needs an administrator.")
        mounted.append(megabytes)
        return folder

    yield mount
    for _ in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_there_is_one_sentence(server: Server, config: Config, small_disk: Callable[[int], Path]) -> None:
    remote = replace(server.remote, folder=str(small_disk(2)))
    with pytest.raises(DarkroomError, match=r"The disk of box is too full: .* needed") as refused:
        train_there(remote, RunRequest(config), Line(lambda event: None))
    assert "Free some space there" in refused.value.advice

    class Boasting(Connection):
        """A connection to a disk that fills while files are sent."""

        def call(self, request: str, content: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
            answer = super().call(request, content, **arguments)
            if request == "missing":
                answer[0]["free_bytes"] = 10**12
            return answer

    small_disk(8)
    with pytest.raises(DarkroomError, match="The disk of box is full"):
        train_there(remote, RunRequest(config), Line(lambda event: None), connect=Boasting)
    assert not run_dirs(Path(config.general.workspace_dir))


@pytest.mark.parametrize("can_log", [True, False])
def test_a_disk_that_is_full_during_the_run_is_one_sentence(
    server: Server, config: Config, small_disk: Callable[[int], Path], can_log: bool
) -> None:
    """Also if there is no room for the event with the reason."""
    folder, config = small_disk(64), replace_epochs(config, 200)  # it must not end before the disk is full
    remote = replace(server.remote, folder=str(folder))
    events: list[Event] = []

    def fill(event: Event) -> None:
        events.append(event)
        if isinstance(event, RunStarted):
            with (folder / "filler").open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass
            for process in () if can_log else processes_of(config):
                process.kill()

    train_there(remote, RunRequest(config), Line(fill))
    assert isinstance(events[-1], RunFailed), events[-1]
    assert "On box: " in events[-1].message
    assert f"The disk is full: {folder}" in events[-1].message
