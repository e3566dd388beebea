"""A run in a child process: its events, commands, and how its end is told. The children here are small scripts."""

from __future__ import annotations

import argparse
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from modules.config.codec import load_file
from modules.config.schema import Config
from modules.config.sections.general import General, MultiGpu
from modules.system import hardware
from modules.system.paths import PROGRAM_ROOT, log_dir
from trainer.child import run as run_module
from trainer.child.process import Child, spawn_python
from trainer.child.run import ChildRun, arguments_of, ending_of, launch_as_set, launch_child
from trainer.cli.console import JsonLines
from trainer.cli.options import add_options, settings_of
from trainer.cli.queue import run_queue
from trainer.cli.runs import RunSettings
from trainer.commands import Pause, Resume, Stop
from trainer.event_lines import from_line, to_line
from trainer.events import Event, PhaseChanged, RunFailed, RunFinished, StepFinished
from trainer.jobs.config import allowed_code, with_hashes
from trainer.launch import RunRequest, module_arguments
from trainer.run.allowed_code import code_of
from trainer.run_queue.file import QueueFile
from trainer.run_queue.items import Item
from trainer.run_queue.running import skip
from trainer.run_status import CRASH_MESSAGE

STEP = StepFinished(1, 1, 1, 3, 1, 3, float("nan"), 0.5, None, 2.0, 1.0)
ENDED = RunFinished("stopped", 1, "Stopped after 1 step.")
# Answers every command with an event, and ends at Stop or when its parent has ended.
OBEDIENT = f"""
import sys
print({to_line(STEP)!r}, flush=True)
print("a library writes this", flush=True)
for line in sys.stdin:
    if "Pause" in line: print({to_line(PhaseChanged("paused"))!r}, flush=True)
    if "Resume" in line: print({to_line(PhaseChanged("training"))!r}, flush=True)
    if "Stop" in line: break
print({to_line(ENDED)!r}, flush=True)
"""


def child(script: str) -> ChildRun:
    return ChildRun(["-S", "-c", script], read=from_line, ending=ending_of, spawn=spawn_python)


def events_until(run: ChildRun, is_last: Callable[[Event], bool]) -> list[Event]:
    found: list[Event] = []
    while not found or not is_last(found[-1]):
        found.append(run.events.get(timeout=120))
    return found


def ending(run: ChildRun) -> Event:
    last = events_until(run, lambda event: isinstance(event, RunFinished | RunFailed))[-1]
    run.thread.join(120)
    assert not run.is_alive
    with pytest.raises(queue.Empty):
        run.events.get_nowait()
    return last


def test_events_arrive_and_commands_reach_it() -> None:
    run = child(OBEDIENT)
    [first] = events_until(run, lambda event: True)
    assert isinstance(first, StepFinished)
    assert first.loss != first.loss, "NaN survives"
    for command, phase in ((Pause(), "paused"), (Resume(), "training")):
        run.send(command)
        [event] = events_until(run, lambda event: True)
        assert isinstance(event, PhaseChanged)
        assert event.phase == phase
    run.send(Stop())
    assert ending(run) == ENDED
    run.send(Stop())  # to a process that has ended: nothing happens
    assert not list(log_dir().iterdir()), "the log of a run that ended is removed"


def test_it_ends_when_its_parent_does() -> None:
    run = child(OBEDIENT)
    assert run.process.stdin is not None
    run.process.stdin.close()  # as the system does when the parent has ended, however
    assert ending(run) == ENDED


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to kill with")
def test_a_killed_child_is_a_failure_with_its_words() -> None:
    run = child(OBEDIENT)
    run.events.get(timeout=120)
    process: Any = run.process
    process.send_signal(signal.SIGKILL)
    failed = ending(run)
    assert isinstance(failed, RunFailed)
    assert failed.is_crash
    assert failed.message == CRASH_MESSAGE
    assert "memory was full" in failed.advice
    assert Path(failed.details_path).is_file()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import sys; sys.stderr.write('There is no file x.json\\n'); sys.exit(2)", "There is no file x.json"),
        ("raise SystemError('the driver crashed')", CRASH_MESSAGE),
        ("pass", CRASH_MESSAGE),
    ],
)
def test_a_child_without_an_ending_is_a_failure(script: str, words: str) -> None:
    failed = ending(child(script))
    assert isinstance(failed, RunFailed)
    assert words in failed.message
    assert failed.is_crash is (words == CRASH_MESSAGE), "a refusal is an ordinary failure"
    assert list(log_dir().iterdir()) == [Path(failed.details_path)]


def test_it_is_a_process_group_of_its_own() -> None:
    """Ctrl-C in a terminal reaches the parent only, which asks its child to stop."""
    run = child(OBEDIENT)
    if sys.platform != "win32":
        process: Any = run.process
        assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
    run.send(Stop())
    ending(run)


def test_the_command_line_of_each_kind_of_request(tmp_path: Path) -> None:
    file, backup = tmp_path / "c.json", tmp_path / "b"
    kinds = [
        (RunRequest(Config()), ["train", str(file)]),
        (RunRequest(Config(), "resume", backup), ["resume", str(backup), "--config", str(file)]),
        (RunRequest(Config(), "fork", backup), ["fork", str(backup), "--config", str(file)]),
        (
            RunRequest(Config(), "fork_weights", backup),
            ["fork", str(backup), "--config", str(file), "--weights-only"],
        ),
        (RunRequest(Config(), allowed_code=frozenset({"a"})), ["train", str(file), "--allow-code-hash=a"]),
    ]
    several = Config(multi_gpu=MultiGpu(enabled=True, device_indexes="0, 2"))
    assert module_arguments(Config()) == ["-m", "trainer"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert module_arguments(several) == [*launcher, "-m", "trainer"]
    for request, arguments in kinds:
        assert arguments_of(request, file) == [*arguments, "--json-lines"]


def test_the_config_of_a_child_is_written_and_removed() -> None:
    seen = []

    def spawn(arguments: Sequence[str], errors: IO[bytes]) -> Child:
        config_file = Path(arguments[1])
        seen.append((config_file, load_file(config_file).config))
        return spawn_python(["-S", "-c", OBEDIENT], errors)

    run = launch_child(RunRequest(Config()), spawn=spawn)
    run.send(Stop())
    assert ending(run) == ENDED
    [(config_file, config)] = seen
    assert config == Config()
    assert not config_file.exists()


@pytest.mark.parametrize(
    ("after_failure", "states"), [("continue", ["crashed", "finished"]), ("stop", ["crashed", "waiting"])]
)
def test_the_queue_continues_after_a_failure_or_stops(tmp_path: Path, after_failure: str, states: list[str]) -> None:
    file = QueueFile(tmp_path / "queue.json")
    for name in ("killed", "good"):
        file.change(lambda now, name=name: now.add(name, Config()))  # type: ignore[misc]
    file.change(lambda now: now.with_after_failure("continue" if after_failure == "continue" else "stop"))
    good = f"print({to_line(RunFinished('finished', 3, 'Finished after 3 steps.'))!r}, flush=True)"

    def launch(item: Item) -> ChildRun:
        return child(good if item.name == "good" else "import os; os.kill(os.getpid(), 9)")

    assert run_queue(file, JsonLines(), launch=launch) == 1
    assert [item.state for item in file.read().items] == states
    assert file.read().items[0].message.startswith(CRASH_MESSAGE)


@pytest.mark.parametrize(("is_skipped", "states"), [(True, ["stopped", "stopped"]), (False, ["stopped", "waiting"])])
def test_another_program_skips_an_item(tmp_path: Path, is_skipped: bool, states: list[str]) -> None:
    file = QueueFile(tmp_path / "queue.json")
    for name in ("one", "two"):
        file.change(lambda now, name=name: now.add(name, Config()))  # type: ignore[misc]

    def launch(item: Item) -> ChildRun:
        if is_skipped:
            file.change(lambda now: now.with_run_dir(item.number, str(tmp_path)))
            skip(file, file.read().item(item.number))
        return child(f"print({to_line(RunFinished('stopped', 3, 'Stopped.'))!r}, flush=True)")

    assert run_queue(file, JsonLines(), launch=launch) == (0 if is_skipped else 130)
    assert [item.state for item in file.read().items] == states


@pytest.mark.skipif(sys.platform == "win32", reason="Windows reports closed pipes otherwise")
def test_a_child_outlives_the_reader_of_its_events() -> None:
    """It died from the closed pipe of a killed parent, before it could stop with a backup."""
    script = """
import sys
from trainer.cli.console import JsonLines
from trainer.events import RunFinished
lines = JsonLines()
sys.stdin.read()
for _ in range(3):
    lines.show(RunFinished("stopped", 1, "Stopped."))
sys.stderr.write("the backup is written")
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=PROGRAM_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == "the backup is written"
        assert process.wait(120) == 0


@pytest.mark.parametrize(
    ("build", "device", "deterministic", "is_child"),
    [("cu128", "auto", True, True), ("cu128", "cuda:0", True, True), ("cu128", "auto", False, False),
     ("cu128", "cpu", True, False), ("cpu", "auto", True, False)],
)  # fmt: skip
def test_a_deterministic_run_on_a_gpu_has_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, build: str, device: str, deterministic: bool, is_child: bool
) -> None:
    """Torch reads CUBLAS_WORKSPACE_CONFIG once in a process: in the window an earlier run may have started CUDA."""
    started: list[str] = []
    monkeypatch.setattr(hardware, "here", lambda: hardware.Hardware(build, False, (9.0,) if build != "cpu" else None))
    monkeypatch.setattr(run_module, "launch", lambda request: started.append("thread"))
    monkeypatch.setattr(run_module, "launch_child", lambda request: started.append("child"))
    general = General(train_device=device, deterministic=deterministic)
    launch_as_set(RunRequest(Config(general=general)))
    assert started == ["child" if is_child else "thread"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "c.json"], ["train", "c.json"]),
        (["train", "--allow-code", "c.json"], ["train", "c.json", "--allow-code-hash=aa", "--allow-code-hash=bb"]),
        (["train", "c.json", "--allow-code-hash=aa"], ["train", "c.json", "--allow-code-hash=aa"]),
    ],
)
def test_other_processes_may_run_only_the_code_that_was_allowed_here(arguments: list[str], expected: list[str]) -> None:
    assert with_hashes(arguments, {"bb", "aa"}) == expected


def test_a_child_runs_the_approved_code_and_no_later_version(tmp_path: Path) -> None:
    """The file may change between the approval and the start of the child, or of the next run of a queue."""
    code = tmp_path / "mine.py"
    code.write_text("def score(images, prompts): return [0.0] * len(images)\n")
    rewards = {"models": [{"kind": "user_code", "file": f"{code}:score"}]}
    config = Config.model_validate({"reward": rewards, "training": {"method": "alignprop"}})
    parser = argparse.ArgumentParser()
    add_options(parser, RunSettings)

    def read(arguments: list[str]) -> RunSettings:
        return RunSettings.model_validate(settings_of(parser.parse_args(arguments), RunSettings))

    approved = allowed_code(config, read(["--allow-code"]))
    request = RunRequest(config, allowed_code=approved)
    code.write_text("import os\n")
    of_child = [a for a in arguments_of(request, tmp_path / "c.json") if "code" in a]
    assert allowed_code(config, read(of_child)) == approved
    assert not approved & {found.digest for found in code_of(config)}
