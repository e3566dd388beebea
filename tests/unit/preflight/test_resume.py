"""A run that goes on: what may not have changed is told by its field, before the run."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from modules.config.codec import save_file
from modules.config.schema import Config
from tests.unit.preflight.setups import changed, errors, told
from trainer.preflight import check
from trainer.run_folder.backup import write_backup


def backup_of(config: Config, folder: Path) -> Path:
    """Write a backup that holds a config and nothing else."""
    write_backup(
        folder / "runs" / "one", step=3, epoch=1, now=datetime(2026, 1, 1),
        write=lambda inside: save_file(config, inside / "config.json"),
    )  # fmt: skip
    return folder


def test_what_may_change_is_not_told(config: Config, tmp_path: Path) -> None:
    place = backup_of(config, tmp_path / "runs")
    assert told(check(config, resume_from=place)) == []
    longer = changed(config, training__epochs=9, output__trigger_words="zog")
    assert told(check(longer.model_copy(update={"unknown": {"x": 1}}), resume_from=place)) == []


def test_all_that_may_not_change_is_told_at_once(config: Config, tmp_path: Path) -> None:
    place = backup_of(config, tmp_path / "runs")
    other = changed(config, general__seed=7, training__batch_size=1, adapter__rank=3)
    report = check(other, resume_from=place)
    assert errors(report) == ["adapter.rank", "general.seed", "training.batch_size"]
    assert report.errors[1].message == "The run was begun with 42, and now it is 7: this cannot change on the way."
    assert told(check(other)) == [], "a fresh run may have any settings"


def test_another_variant_is_told_by_its_fields(config: Config, tmp_path: Path) -> None:
    place = backup_of(config, tmp_path / "runs")
    other = changed(config, training__optimizer={"name": "adafactor"})
    report = check(other, resume_from=place)
    assert "training.optimizer.name" in errors(report)
    assert all(p.message.endswith(".") and p.advice for p in report.errors)


def test_a_list_is_told_by_its_length(config: Config, tmp_path: Path) -> None:
    place = backup_of(config, tmp_path / "runs")
    fewer = changed(config, concepts=[{**config.concepts[0].model_dump(), "repeats": 2.0}])
    [problem] = check(fewer, resume_from=place).errors
    assert problem.path == "concepts"


def test_no_backup_and_one_without_settings_are_told(config: Config, tmp_path: Path) -> None:
    [problem] = check(config, resume_from=tmp_path / "nothing").errors
    assert "no complete backup" in problem.message
    write_backup(tmp_path / "runs" / "two", step=1, epoch=0, now=datetime(2026, 1, 1), write=lambda inside: None)
    [problem] = check(config, resume_from=tmp_path / "runs" / "two").errors
    assert "cannot be read" in problem.message
