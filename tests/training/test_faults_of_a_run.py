"""What a run leaves when the disk is full, when it is resumed from an older backup, and when two want its folder."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load, load_file

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.system.paths import PROGRAM_ROOT
from tests.builders.configs import config_fixture, laid_over
from tests.builders.full_disk import FullDisk
from tests.builders.runs import Ran, assert_equal_tensors, run, stop_at
from trainer.commands import BackupNow, Command, Pause, SaveNow, Stop, to_line
from trainer.event_lines import from_line
from trainer.events import (
    BackupSaved,
    CacheProgress,
    DownloadProgress,
    Event,
    ModelSaved,
    PhaseChanged,
    RunFailed,
    RunFinished,
    RunStarted,
    SampleProgress,
    StepFinished,
    WarningRaised,
)
from trainer.export.adapter import AdapterExporter
from trainer.export.exporter import SaveMoment
from trainer.machine_events import MemoryMeasured
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import StepContext, StepLoss
from trainer.run.backups import Backups
from trainer.run_folder.event_log import EVENTS_FILE
from trainer.run_folder.run_lock import LOCK_FILE

config = config_fixture("tiny_sd")


def no_room(*_arguments: Any, **_options: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_room_for_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk has room for backups, but not for the exported model; before the first step it still had."""
    plain = AdapterExporter.save

    def save(self: AdapterExporter, path: Path, values: Any, moment: SaveMoment, **options: Any) -> None:
        if moment.step:
            no_room()
        plain(self, path, values, moment, **options)

    monkeypatch.setattr(AdapterExporter, "save", save)


def no_room_for_backups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backups, "write", no_room)


def stopped_at(config: Config, step: int, **options: Any) -> Ran:
    """A run that is stopped after a step."""

    return run(config, on_event=stop_at(step), **options)


def run_dir_of(ran: Ran) -> Path:
    return Path(ran.of(RunStarted)[0].run_dir)


# -- a full disk at the end


@pytest.mark.full
def test_a_stop_backs_up_first_and_a_model_that_finds_no_room_is_a_warning(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model used to come first, with the rescue disarmed: all since the last backup was lost."""
    no_room_for_models(monkeypatch)
    stopped = stopped_at(config, 3)
    assert (stopped.finished.outcome, stopped.finished.step) == ("stopped", 3)
    assert stopped.finished.model_path == ""
    assert [w.message for w in stopped.of(WarningRaised)] == [
        "The model of step 3 could not be saved. The disk is full."
    ]
    monkeypatch.undo()
    resumed = run(config, resume_from=Path(stopped.finished.backup_path))
    assert resumed.of(StepFinished)[0].step == 4
    straight = run(laid_over(config, {"general": {"workspace_dir": config.general.workspace_dir + "2"}}))
    assert_equal_tensors(straight.weights, resumed.weights)


def test_a_stop_writes_the_backup_before_the_model(config: Config) -> None:
    stopped = stopped_at(config, 3)
    assert [type(e) for e in stopped.events if isinstance(e, BackupSaved | ModelSaved)] == [BackupSaved, ModelSaved]
    assert Path(stopped.finished.model_path).is_file()


def test_a_stop_whose_backup_fails_tries_again_and_leaves_the_model(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, calls = Backups.write, []

    def write(self: Backups, *arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            no_room()
        return plain(self, *arguments)

    monkeypatch.setattr(Backups, "write", write)
    stopped = stopped_at(config, 3)
    assert isinstance(stopped.ending, RunFailed)
    assert stopped.ending.message == "The disk is full."
    assert [s.step for s in stopped.of(ModelSaved)] == [3]
    assert Path(stopped.ending.backup_path).name == "step-00000003", "the rescue was still armed"


@pytest.mark.daily(1)
@pytest.mark.parametrize("at_end", [True, False])
def test_a_result_that_finds_no_room_loses_nothing_and_is_written_when_the_run_is_resumed(
    config: Config, monkeypatch: pytest.MonkeyPatch, at_end: bool
) -> None:
    config = laid_over(config, {"backup": {"at_end": at_end}})
    no_room_for_models(monkeypatch)
    failed = run(config)
    last = failed.of(StepFinished)[-1].step
    assert isinstance(failed.ending, RunFailed)
    assert failed.ending.message == "The disk is full."
    assert Path(failed.ending.backup_path).name == f"step-{last:08d}"
    assert [s.step for s in failed.of(BackupSaved)] == [last]
    monkeypatch.undo()
    resumed = run(config, resume_from=Path(failed.ending.backup_path))
    assert resumed.finished.outcome == "finished"
    assert not resumed.of(StepFinished)
    ours = load(Path(resumed.finished.model_path).read_bytes())
    assert_equal_tensors(load_file(run(config).finished.model_path), ours)


def test_a_last_backup_that_fails_is_a_warning_where_the_result_is_written(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room_for_backups(monkeypatch)
    ran = run(config)
    assert ran.finished.outcome == "finished"
    assert Path(ran.finished.model_path).is_file()
    assert ran.finished.backup_path == ""
    assert any("last backup could not be written" in w.message for w in ran.of(WarningRaised))


# -- a full disk in the middle


def test_a_disk_that_is_full_everywhere_still_ends_the_run_with_a_sentence(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`error.txt` and `events.jsonl` used to raise at the outer edge: no RunFailed came."""
    disk = FullDisk(monkeypatch, tmp_path / "workspace")
    plain = Denoise.loss

    def broken(self: Denoise, batch: Any, context: StepContext) -> StepLoss:
        if batch.step == 2:
            disk.is_full = True
            raise ZeroDivisionError("planted error")
        return plain(self, batch, context)

    monkeypatch.setattr(Denoise, "loss", broken)
    ran = run(config)
    assert isinstance(ran.ending, RunFailed)
    assert "planted error" in ran.ending.message
    assert (ran.ending.details_path, ran.ending.backup_path) == ("", "")
    assert not (run_dir_of(ran) / "error.txt").exists()
    assert not (run_dir_of(ran) / LOCK_FILE).exists()


def test_a_backup_that_finds_no_room_does_not_end_the_run(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """*Back up now* on a full disk ended a run without a backup: all that it had learned was lost."""
    each_step = {"n": 1, "unit": "step"}
    config = laid_over(config, {"backup": {"every": each_step, "save_every": each_step}})
    disk = FullDisk(monkeypatch, tmp_path / "workspace")
    plain = Denoise.loss

    def loss(self: Denoise, batch: Any, context: StepContext) -> StepLoss:
        disk.is_full = batch.step in (1, 2)
        return plain(self, batch, context)

    monkeypatch.setattr(Denoise, "loss", loss)

    def ask_again(event: Event, send: Callable[[Command], None]) -> None:
        if isinstance(event, StepFinished) and event.step == 3:
            send(BackupNow())
            send(SaveNow())

    for on_event, num_warnings in ((None, 1), (ask_again, 2)):
        ran = run(config, on_event=on_event)
        for name in ("A backup", "An intermediate save"):
            warnings = [w for w in ran.of(WarningRaised) if w.message.startswith(f"{name} could not be written.")]
            assert len(warnings) == num_warnings, "each that is asked for is answered"
            assert all(w.advice.startswith("Training continues. Free some space") for w in warnings)
    assert ran.finished.outcome == "finished"
    steps = [s.step for s in ran.of(StepFinished)]
    written = [b.step for b in ran.of(BackupSaved)]
    assert written == sorted(set(written))
    assert len(written) == len(steps) - 2


def test_a_folder_that_is_full_from_the_beginning_is_a_sentence(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FullDisk(monkeypatch, tmp_path / "workspace", is_full=True)
    ending = run(config).ending
    assert isinstance(ending, RunFailed)
    assert ending.message.startswith(f"The disk is full: {tmp_path / 'workspace'}")


@pytest.mark.parametrize("step", [1, 4])
def test_a_full_disk_names_the_backup_to_resume_from_only_where_there_is_one(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    config = laid_over(config, {"backup": {"every": {"n": 3, "unit": "step"}}})
    disk = FullDisk(monkeypatch, tmp_path / "workspace")
    plain = Denoise.loss

    def full(self: Denoise, batch: Any, context: StepContext) -> StepLoss:
        if batch.step == step:
            disk.is_full = True
            no_room()
        return plain(self, batch, context)

    monkeypatch.setattr(Denoise, "loss", full)
    ran = run(config)
    assert isinstance(ran.ending, RunFailed)
    name = run_dir_of(ran).name
    way_on = {
        1: f"Then start the run again: {name} has no backup yet.",
        4: f"Then resume the run {name}: its backup of step 3 is complete.",
    }[step]
    assert ran.ending.advice == f"Free some space. {way_on}"


def test_a_failure_that_cannot_be_described_is_still_reported(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    class StrangeError(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def strange(*_arguments: Any, **_options: Any) -> None:
        raise StrangeError

    monkeypatch.setattr("trainer.run.execute.execute", strange)
    assert run(config).ending == RunFailed(
        "The run failed, and why could not be described.", "The log has the details."
    )


# -- resumed from an older backup


@pytest.mark.full
def test_a_run_resumed_from_the_older_of_two_keeps_its_own_branch(config: Config) -> None:
    """The abandoned branch used to be the newest, and the backup just written the first to be removed."""
    config = laid_over(config, {"backup": {"every": {"n": 2, "unit": "step"}, "keep": 2}})
    first = run(config)
    run_dir = run_dir_of(first)
    older, newer = sorted((run_dir / "backup").iterdir())
    longer = laid_over(config, {"training": {"epochs": 3}})
    resumed = stopped_at(longer, int(older.name[-8:]) + 1, resume_from=older)
    [warning] = resumed.of(WarningRaised)
    assert warning.message == (
        f"The run resumes from step {int(older.name[-8:])} and abandons the branch of these backups: {newer.name}."
    )
    assert "newest 2 are kept" in warning.advice
    written = Path(resumed.finished.backup_path)
    assert written.name == f"step-{int(older.name[-8:]) + 1:08d}"
    assert sorted((run_dir / "backup").iterdir()) == [older, written]
    again = run(longer, resume_from=run_dir)
    assert again.of(StepFinished)[0].step == resumed.finished.step + 1
    assert not again.of(WarningRaised)


def test_a_resumed_run_that_is_killed_at_once_stays_on_its_branch(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = laid_over(config, {"backup": {"every": {"n": 2, "unit": "step"}}})
    run_dir = run_dir_of(run(config))
    older = min((run_dir / "backup").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr("trainer.run.execute.carry_out", no_room)  # stands for a kill: nothing of the run comes any more
        killed = run(laid_over(config, {"training": {"epochs": 3}}), resume_from=older)
    assert isinstance(killed.ending, RunFailed)
    assert killed.ending.backup_path == str(older)
    again = stopped_at(laid_over(config, {"training": {"epochs": 3}}), 3, resume_from=run_dir)
    assert again.of(StepFinished)[0].step == 3


# -- two processes on one folder


def test_a_run_that_another_process_has_is_refused_and_left_alone(config: Config, tmp_path: Path) -> None:
    config = laid_over(config, {"training": {"epochs": 200}})
    save_file(config, tmp_path / "long.json")
    command_line = [sys.executable, "-m", "trainer", "train", str(tmp_path / "long.json"), "--json-lines"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    reported: list[Event] = []
    backup, refused = "", Ran()
    with subprocess.Popen(
        command_line, cwd=PROGRAM_ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            event = from_line(line)
            assert event is not None
            reported.append(event)
            commands: tuple[Command, ...] = ()
            if isinstance(event, StepFinished) and event.step == 1:
                commands = (BackupNow(),)
            elif isinstance(event, BackupSaved) and not backup:
                backup, commands = event.path, (Pause(),)
            elif isinstance(event, PhaseChanged) and event.phase == "paused":
                refused, commands = run(config, resume_from=Path(backup)), (Stop(),)
            for command in commands:
                process.stdin.write(to_line(command) + "\n")
                process.stdin.flush()
    assert process.returncode == 130
    [failed] = refused.events
    assert isinstance(failed, RunFailed)
    assert "in use by another program" in failed.message
    finished = reported[-1]
    assert isinstance(finished, RunFinished)
    run_dir = Path(finished.backup_path).parent.parent
    assert not {LOCK_FILE, "error.txt"} & {p.name for p in run_dir.iterdir()}
    assert reported[0] == PhaseChanged("starting", "loading the engine")  # before there is a folder
    kept = [
        e for e in reported[1:] if not isinstance(e, CacheProgress | SampleProgress | DownloadProgress | MemoryMeasured)
    ]
    assert [from_line(line) for line in (run_dir / EVENTS_FILE).read_text().splitlines()] == kept
