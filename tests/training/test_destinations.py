"""No run replaces the result of another: it numbers its own, unless a person said that it may be replaced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path

import pytest

from modules.config.schema import Config
from modules.system.file_lock import FileLock, LockTaken, locked_soon
from tests.builders.configs import small_config
from tests.builders.runs import Ran, run
from trainer.callbacks import saving
from trainer.callbacks.side_output import DryRunComplete
from trainer.commands import Command, CommandDesk, Pause, Stop
from trainer.events import Event, ModelSaved, PhaseChanged, RunStarted, StepFinished, WarningRaised
from trainer.launch import RunRequest
from trainer.run import finish
from trainer.run.execute import execute_guarded
from trainer.run_folder.event_log import EventLog


@pytest.fixture
def config(tiny_sd: Path, images: Path, tmp_path: Path) -> Config:
    return small_config(tmp_path, model=tiny_sd, images=images, training={"epochs": 1})


def asked(config: Config) -> Path:
    return Path(config.output.destination)


def numbered(config: Config, number: int) -> Path:
    place = asked(config)
    return place.with_name(f"{place.stem}-{number}{place.suffix}")


def warned(ran: Ran, words: str) -> bool:
    return any(words in w.message for w in ran.of(WarningRaised))


def carried_out(request: RunRequest) -> Ran:
    ran = Ran()
    execute_guarded(request, emit=ran.events.append, desk=CommandDesk())
    return ran


def test_the_second_run_of_a_config_keeps_the_result_of_the_first(config: Config) -> None:
    one = run(config)
    first = asked(config).read_bytes()
    name = Path(one.of(RunStarted)[0].run_dir).name
    other = run(config)
    assert (asked(config).read_bytes() == first, other.finished.model_path) == (True, str(numbered(config, 2)))
    assert numbered(config, 2).stat().st_size > 1000
    assert warned(other, f"is the result of the run {name}. It is kept")
    assert run(config).finished.model_path == str(numbered(config, 3))


def test_a_file_of_another_program_is_kept_and_named(config: Config) -> None:
    asked(config).parent.mkdir()
    asked(config).write_bytes(b"precious")
    ran = run(config)
    assert (asked(config).read_bytes(), ran.finished.model_path) == (b"precious", str(numbered(config, 2)))
    assert warned(ran, "Darkroom did not write it")


def test_a_person_may_let_it_be_replaced_also_after_a_stop(config: Config) -> None:
    run(config)
    first = asked(config).read_bytes()
    longer = config.model_copy(update={"training": config.training.model_copy(update={"epochs": 2})})
    ran, desk = Ran(), CommandDesk()

    def emit(event: Event) -> None:
        ran.events.append(event)
        if isinstance(event, StepFinished):
            desk.put(Stop())

    execute_guarded(RunRequest(longer, replaces=True), emit=emit, desk=desk)
    assert warned(ran, "It will be replaced")
    assert asked(config).read_bytes() == first
    resumed = run(longer, resume_from=Path(ran.finished.backup_path))
    assert resumed.finished.model_path == str(asked(config))
    assert asked(config).read_bytes() != first
    assert not numbered(config, 2).exists()


def test_the_result_of_a_run_that_ended_meanwhile_is_kept(config: Config) -> None:
    """Two runs of a config at a time: what appears after the start may be the result of the other."""

    def appear(event: Event, send: Callable[[Command], None]) -> None:
        if isinstance(event, StepFinished):
            asked(config).parent.mkdir(exist_ok=True)
            asked(config).write_bytes(b"precious")

    ran = run(config, on_event=appear)
    assert (asked(config).read_bytes(), ran.finished.model_path) == (b"precious", str(numbered(config, 2)))
    again = run(config, resume_from=Path(ran.finished.backup_path))
    assert again.finished.model_path in ("", str(numbered(config, 2)))
    assert (asked(config).read_bytes(), numbered(config, 3).exists()) == (b"precious", False)


def test_the_result_of_a_run_that_ends_at_the_same_time_is_kept(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked for a free name before either had written: the one that wrote first lost its model.

    The user reads what a run waits for: it can take minutes.
    """
    waits: list[float] = []

    def wait(path: Path, *, patience_seconds: float, check: Callable[[], None]) -> FileLock:
        waits.append(patience_seconds)
        if len(waits) == 1:
            raise LockTaken(None, is_certain=True)
        asked(config).parent.mkdir(exist_ok=True)
        asked(config).write_bytes(b"precious")  # by the run that was waited for
        lock = locked_soon(path, patience_seconds=patience_seconds, check=check)
        with pytest.raises(LockTaken):
            FileLock(path)
        return lock

    monkeypatch.setattr(finish, "locked_soon", wait)
    ran = run(config)
    assert (asked(config).read_bytes(), ran.finished.model_path) == (b"precious", str(numbered(config, 2)))
    assert waits[0] < 5 < waits[1]
    phases = [(event.phase, event.detail) for event in ran.of(PhaseChanged)]
    assert ("saving", f"waiting for another run to write {asked(config).name}") in phases


def test_a_lock_that_another_run_keeps_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(_path: Path, *, patience_seconds: float, check: Callable[[], None]) -> FileLock:
        raise LockTaken(None, is_certain=True)

    monkeypatch.setattr(finish, "locked_soon", taken)
    said: list[Event] = []
    with writing(tmp_path / "zog.safetensors", said):
        pass
    [warning] = [event for event in said if isinstance(event, WarningRaised)]
    assert "still writing zog.safetensors after 10 minutes" in warning.message


def writing(destination: Path, said: list[Event]) -> AbstractContextManager[None]:
    """Return the context in which a run writes its result."""
    return finish._wait_for_other_runs(destination, EventLog(said.append, datetime.now), CommandDesk())


def test_a_run_that_waits_for_another_ones_result_hears_pause_and_stop(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It heard neither for ten minutes. What it has trained is in a backup, from which it writes its result later."""
    monkeypatch.setattr(finish, "_SILENT_SECONDS", 0.0)

    def command(event: Event, send: Callable[[Command], None]) -> None:
        if isinstance(event, PhaseChanged) and event.detail.startswith("waiting for another run"):
            send(Pause())
        if isinstance(event, PhaseChanged) and event.phase == "paused":
            send(Stop())

    with writing(asked(config), []):
        ran = run(config, on_event=command)
    assert (ran.finished.outcome, asked(config).exists()) == ("stopped", False)
    assert [event.phase for event in ran.of(PhaseChanged)].count("paused") == 1
    resumed = run(config, resume_from=Path(ran.finished.backup_path))
    assert (resumed.finished.outcome, resumed.finished.model_path) == ("finished", str(asked(config)))


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_resumed_run_replaces_its_own_result(config: Config, is_taken: bool) -> None:
    """Also if the file that made it take a number is gone, and its config still has the name without one."""
    if is_taken:
        asked(config).parent.mkdir()
        asked(config).write_bytes(b"precious")
    first = run(config)
    place = numbered(config, 2) if is_taken else asked(config)
    before = place.read_bytes()
    if is_taken:
        asked(config).unlink()
    longer = config.model_copy(update={"training": config.training.model_copy(update={"epochs": 2})})
    resumed = run(longer, resume_from=Path(first.finished.backup_path))
    assert resumed.finished.model_path == str(place)
    assert place.read_bytes() != before
    assert [p.name for p in place.parent.iterdir()] == [place.name]


@pytest.mark.full
def test_a_fork_keeps_the_result_of_its_parent(config: Config) -> None:
    parent = run(config)
    before = asked(config).read_bytes()
    longer = config.model_copy(update={"training": config.training.model_copy(update={"epochs": 2})})
    for kind, number in (("fork", 2), ("fork_weights", 3)):
        fork = carried_out(RunRequest(longer, kind, Path(parent.finished.backup_path)))  # type: ignore[arg-type]
        assert [Path(e.path) for e in fork.of(ModelSaved) if e.is_final] == [numbered(config, number)]
    assert asked(config).read_bytes() == before


def test_the_dry_run_makes_no_folder_for_the_result(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """It made and removed a missing one: a run that started at the same time failed as it wrote there."""
    folder = Path(config.output.destination).parent
    were_there: list[bool] = []

    def end_write(_done_bytes: int, _total_bytes: int) -> None:
        were_there.append(folder.exists())
        raise DryRunComplete

    monkeypatch.setattr(saving, "end_write", end_write)
    assert run(config).finished.outcome == "finished"
    assert were_there == [False, False], "of an intermediate save and of the result"
    assert [file.parent for file in folder.rglob("*")] == [folder]
