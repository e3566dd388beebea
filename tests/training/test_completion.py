"""A run is complete once its own record says so: any other file at the place of its result proves nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from modules.config.schema import Config
from tests.builders.configs import laid_over, small_config
from tests.builders.runs import Ran, run
from trainer.callbacks.saving import SavingCallback
from trainer.events import RunFailed, RunStarted, StepFinished
from trainer.run_folder.backup import list_backups
from trainer.run_folder.event_log import EVENTS_FILE
from trainer.run_folder.result import RESULTS_FILE, results_of


class Killed(BaseException):
    """The end of the process."""


def die_before_the_result(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let every final save fail, wherever it goes."""
    plain = SavingCallback.save

    def save(self: SavingCallback, path: Path, *arguments: object, is_final: bool, **options: object) -> None:
        if is_final:
            raise error
        plain(self, path, *arguments, is_final=is_final, **options)  # type: ignore[arg-type]

    patch.setattr(SavingCallback, "save", save)


def run_dir_of(ran: Ran) -> Path:
    return Path(ran.of(RunStarted)[0].run_dir)


@pytest.fixture
def config(tiny_sd: Path, images: Path, tmp_path: Path) -> Config:
    """A run of three steps, whose destination has the model of another run."""
    config = small_config(
        tmp_path, model=tiny_sd, images=images, training={"epochs": 1}, backup={"every": {"n": 1, "unit": "step"}}
    )
    destination = Path(config.output.destination)
    destination.parent.mkdir(parents=True)
    destination.write_bytes(b"the model of yesterday")
    return config


@pytest.fixture
def finished(config: Config) -> Ran:
    ran = run(config)
    assert ran.finished.outcome == "finished"
    return ran


@pytest.mark.parametrize("error", [Killed(), OSError(5, "Input/output error")], ids=["killed", "I/O error"])
def test_a_resumed_run_writes_the_result_that_it_could_not_write_before(
    config: Config, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    with monkeypatch.context() as patch:
        die_before_the_result(patch, error)
        failed = run(config)
    assert isinstance(failed.ending, RunFailed)
    assert Path(config.output.destination).read_bytes() == b"the model of yesterday"
    resumed = run(config, resume_from=run_dir_of(failed))
    assert (resumed.finished.outcome, resumed.of(StepFinished)) == ("finished", [])
    assert load_file(resumed.finished.model_path)
    [result] = results_of(run_dir_of(failed))
    assert (str(result.path), result.step) == (resumed.finished.model_path, 3)


def test_a_complete_run_is_named_with_its_result(config: Config, finished: Ran) -> None:
    again = run(config, resume_from=run_dir_of(finished))
    assert again.finished.outcome == "already_complete"
    assert run_dir_of(finished).name in again.finished.message
    assert finished.finished.model_path in again.finished.message
    assert again.finished.model_path == finished.finished.model_path


def test_a_result_that_was_replaced_since_is_written_again(config: Config, finished: Ran) -> None:
    Path(finished.finished.model_path).write_bytes(b"the model of tomorrow")
    resumed = run(config, resume_from=run_dir_of(finished))
    assert resumed.finished.outcome == "finished"
    assert load_file(resumed.finished.model_path)


def test_another_destination_gets_the_result_without_training(config: Config, finished: Ran, tmp_path: Path) -> None:
    moved = laid_over(config, {"output": {"destination": str(tmp_path / "elsewhere.safetensors")}})
    resumed = run(moved, resume_from=run_dir_of(finished))
    assert (resumed.finished.outcome, resumed.of(StepFinished)) == ("finished", [])
    assert load_file(tmp_path / "elsewhere.safetensors")
    assert run(config, resume_from=run_dir_of(finished)).finished.outcome == "already_complete"


def test_the_result_of_an_abandoned_branch_does_not_complete_the_run(
    config: Config, finished: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = run_dir_of(finished)
    first = list_backups(run_dir)[0]
    with monkeypatch.context() as patch:
        die_before_the_result(patch, Killed())
        changed = laid_over(config, {"training": {"learning_rate": 2e-3}})
        assert isinstance(run(changed, resume_from=first.path).ending, RunFailed)
    assert list_backups(run_dir)[-1].step == 3
    assert results_of(run_dir)[0].is_unchanged()
    before = load_file(finished.finished.model_path)
    resumed = run(changed, resume_from=run_dir)
    assert resumed.finished.outcome == "finished"
    assert resumed.finished.model_path == finished.finished.model_path
    after = load_file(resumed.finished.model_path)
    assert any((before[name] != after[name]).any() for name in before)


def test_a_run_of_an_older_version_is_complete_by_its_log(config: Config, finished: Ran) -> None:
    run_dir = run_dir_of(finished)
    (run_dir / RESULTS_FILE).unlink()
    assert run(config, resume_from=run_dir).finished.outcome == "already_complete"
    log = run_dir / EVENTS_FILE
    lines = log.read_text().splitlines()
    log.write_text("\n".join(lines[:-1]) + "\n")
    shutil.copy(finished.finished.model_path, Path(config.output.destination).with_name("copy.safetensors"))
    assert run(config, resume_from=run_dir).finished.outcome == "finished"
