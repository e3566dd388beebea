"""Forks: a new run from a backup of another run, whose folder stays as it is to the byte."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from modules.config.schema import Config
from tests.builders.configs import laid_over, small_config
from tests.builders.runs import Ran, assert_equal_tensors
from trainer.commands import CommandDesk
from trainer.events import RunFailed, RunStarted, StepFinished
from trainer.launch import RunRequest
from trainer.run.execute import execute_guarded
from trainer.run_folder.backup import BackupInfo, list_backups
from trainer.run_folder.event_log import read_events
from trainer.run_folder.fork import Origin, origin_of, weights_do_not_fit


def fork(config: Config, backup: Path, *, weights_only: bool = False) -> Ran:
    ran = Ran()
    kind = "fork_weights" if weights_only else "fork"
    request = RunRequest(config, kind, backup, in_window=False)
    execute_guarded(request, emit=ran.events.append, desk=CommandDesk())
    return ran


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def run_dir_of(ran: Ran) -> Path:
    [started] = ran.of(RunStarted)
    return Path(started.run_dir)


@pytest.fixture(scope="module")
def original(
    tiny_sd: Path, images: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Config, list[BackupInfo], dict[str, str]]:
    """A run of six steps with a backup after each, and the digests of its files."""
    folder = tmp_path_factory.mktemp("original")
    config = small_config(folder, model=tiny_sd, images=images, backup={"every": {"n": 1, "unit": "step"}, "keep": 0})
    config = laid_over(config, {"training": {"ema": {"mode": "train_device"}}})
    ran = Ran()
    execute_guarded(RunRequest(config, in_window=False), emit=ran.events.append, desk=CommandDesk())
    run_dir = run_dir_of(ran)
    return config, list_backups(run_dir), digests(run_dir)


def test_a_fork_continues_the_state_and_never_writes_into_the_old_run(
    original: tuple[Config, list[BackupInfo], dict[str, str]],
) -> None:
    config, backups, before = original
    ran = fork(config, backups[2].path)
    run_dir = run_dir_of(ran)
    assert run_dir != backups[0].run_dir
    assert [e.step for e in ran.of(StepFinished)] == [4, 5, 6]
    assert_equal_tensors(load_file(backups[-1].path / "weights.safetensors"), ran.weights)
    assert digests(backups[0].run_dir) == before
    assert origin_of(run_dir) == Origin(backups[0].run_dir, 3)
    steps = [e.step for e in read_events(run_dir) if isinstance(e, StepFinished)]
    assert steps == [1, 2, 3, 4, 5, 6], "the curve of the fork begins with that of the run"


def test_with_other_settings_a_fork_starts_from_the_weights_only(
    original: tuple[Config, list[BackupInfo], dict[str, str]],
) -> None:
    config, backups, before = original
    # The batch size cannot change on resume. At this rate the weights stay what they were.
    other = laid_over(config, {"training": {"epochs": 1, "batch_size": 1, "learning_rate": 1e-12}})
    refused = fork(other, backups[2].path).ending
    assert isinstance(refused, RunFailed)
    assert "training.batch_size" in refused.message
    ran = fork(other, backups[2].path, weights_only=True)
    assert [e.step for e in ran.of(StepFinished)] == [1, 2, 3, 4, 5]
    weights = load_file(backups[2].path / "ema.safetensors")  # what the run validated and saved
    assert all(torch.allclose(weights[name], value, atol=1e-6) for name, value in ran.weights.items())
    averages = load_file(Path(ran.finished.backup_path) / "ema.safetensors")
    assert all(torch.allclose(weights[name].float(), value, atol=1e-6) for name, value in averages.items())
    assert origin_of(run_dir_of(ran)) == Origin(backups[0].run_dir, 3, is_weights_only=True)
    assert digests(backups[0].run_dir) == before


def test_weights_of_another_adapter_are_refused_before_the_model_is_loaded(
    original: tuple[Config, list[BackupInfo], dict[str, str]],
) -> None:
    config, backups, before = original
    ran = fork(laid_over(config, {"adapter": {"rank": 4}}), backups[2].path, weights_only=True)
    assert isinstance(ran.ending, RunFailed)
    assert "adapter.rank" in ran.ending.message
    assert digests(backups[0].run_dir) == before


def test_a_fork_of_a_complete_run_needs_more_epochs(
    original: tuple[Config, list[BackupInfo], dict[str, str]],
) -> None:
    config, backups, before = original
    ran = fork(config, backups[-1].path)
    assert ran.finished.outcome == "already_complete"
    assert digests(backups[0].run_dir) == before


def test_weights_serve_with_other_settings_of_their_family() -> None:
    base = Config()
    skipping = laid_over(base, {"model": {"family": {"clip_skip": 1}}})
    assert weights_do_not_fit(base, skipping) == []
    assert weights_do_not_fit(base, laid_over(base, {"model": {"family": "sdxl"}})) == ["model.family"]
