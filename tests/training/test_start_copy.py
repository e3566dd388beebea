"""A resumed run starts from its own copy of the adapter file, and is estimated from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config.schema import Config
from modules.data.buckets import Size
from tests.builders.adapter_files import whole_lora
from tests.builders.budgets import budget_of_run
from tests.builders.configs import laid_over
from tests.builders.runs import assert_equal_tensors, run
from tests.builders.start_files import (
    UNET_ONLY,
    config_of_start,
    norms_and_more,
    notes,
    result,
    starting,
)
from trainer.events import RunFailed, StepFinished
from trainer.preflight import check
from trainer.preflight.budget import disk_need
from trainer.preflight.run_budget import memory_estimate
from trainer.run_folder.run_dir import existing_start_copy, start_copy_in


@pytest.fixture
def config(any_model: Path, images: Path, tmp_path: Path) -> Config:
    """A run of a tiny model of each family."""
    return config_of_start(any_model, images, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("change", ["deleted", "another"])
@pytest.mark.one_family
def test_a_resumed_run_needs_the_file_no_more(config: Config, any_model: Path, tmp_path: Path, change: str) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", rank_of=lambda place: 3)
    two = starting(config, file, **UNET_ONLY, backup={"every": {"n": 1, "unit": "step"}, "keep": 0})
    straight = run(two)
    trained = result(straight)
    steps = straight.of(StepFinished)
    if change == "deleted":
        file.unlink()
    else:
        whole_lora(any_model, file, rank_of=lambda place: 5)
    backup = Path(straight.finished.backup_path).parent / "step-00000001"
    assert not check(two, resume_from=backup).errors
    resumed = run(two, resume_from=backup)
    assert_equal_tensors(resumed.weights, straight.weights)
    assert [s.loss for s in resumed.of(StepFinished)] == [s.loss for s in steps[1:]]
    assert_equal_tensors(result(resumed), trained)
    assert not notes(resumed)


@pytest.mark.full
@pytest.mark.parametrize("change", ["deleted", "another"])
@pytest.mark.one_family
def test_the_estimates_of_a_resumed_run_are_of_its_own_copy(
    config: Config, any_model: Path, tmp_path: Path, change: str
) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors", rank_of=lambda place: 150, extra=norms_and_more)
    start = starting(config, file, **UNET_ONLY)
    sizes = {Size(64, 64): 5}
    memory, need = memory_estimate(start, sizes), disk_need(budget_of_run(start, sizes), sizes, num_captions=1)
    preview = check(start).preview
    assert preview is not None
    backup = Path(run(start).finished.backup_path)
    file.unlink()
    if change == "another":
        whole_lora(any_model, file)
    assert memory_estimate(start, sizes) != memory
    copy = existing_start_copy(backup.parent.parent)
    assert budget_of_run(start, sizes, copy).memory() == memory
    assert disk_need(budget_of_run(start, sizes, copy), sizes, num_captions=1) == need
    resumed = check(start, resume_from=backup).preview
    assert resumed is not None
    assert resumed.memory == preview.memory


@pytest.mark.full
def test_a_resumed_run_without_a_copy_asks_for_the_file(config: Config, any_model: Path, tmp_path: Path) -> None:
    file = whole_lora(any_model, tmp_path / "whole.safetensors")
    start = starting(config, file)
    backup = Path(run(start).finished.backup_path)
    start_copy_in(backup.parent.parent).unlink()  # as in a run of an earlier version
    file.unlink()
    [error] = check(start, resume_from=backup).errors
    assert error.advice.startswith("Put the file back")
    more = laid_over(start, {"training": {"epochs": 2}})
    ending = run(more, resume_from=backup).ending
    assert isinstance(ending, RunFailed)
    assert ending.advice.startswith("Put the file back")
