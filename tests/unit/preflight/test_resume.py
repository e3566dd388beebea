"""A resumed run: settings that must not change are reported by their field, before the run."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path

from modules.config.codec import save_file
from modules.config.schema import Config
from tests.unit.preflight.setups import changed, errors, reported
from trainer.preflight import check
from trainer.preflight.moved_inputs import at_new_places
from trainer.run_folder.backup import write_backup


def backup_of(config: Config, folder: Path) -> Path:
    """Write a backup that contains only a config."""
    write_backup(
        folder / "runs" / "one", step=3, epoch=1, now=datetime(2026, 1, 1),
        write=lambda inside: save_file(config, inside / "config.json"),
    )  # fmt: skip
    return folder


def test_settings_that_may_change_are_not_reported(config: Config, tmp_path: Path) -> None:
    place = backup_of(config, tmp_path / "runs")
    assert reported(check(config, resume_from=place)) == []
    longer = changed(config, training__epochs=9, output__trigger_words="zog")
    assert reported(check(longer.model_copy(update={"unknown": {"x": 1}}), resume_from=place)) == []


def test_all_settings_that_must_not_change_are_reported_at_once(config: Config, tmp_path: Path) -> None:
    place = backup_of(config, tmp_path / "runs")
    other = changed(config, general__seed=7, training__batch_size=1, adapter__rank=3)
    report = check(other, resume_from=place)
    assert errors(report) == ["adapter.rank", "general.seed", "training.batch_size"]
    message = "The run was started with 42, and the setting is now 7. It cannot change when a run is resumed."
    assert report.errors[1].message == message
    assert reported(check(other)) == [], "a new run may have any settings"


def test_learning_rates_and_weight_decay_may_change_and_are_named(config: Config, tmp_path: Path) -> None:
    place = backup_of(config, tmp_path / "runs")
    other = changed(
        config,
        training__learning_rate=2e-4,
        training__schedule={"name": "cosine"},
        training__optimizer={**config.training.optimizer.model_dump(), "weight_decay": 0.25},
        parts__unet__learning_rate=3e-4,
    )
    report = check(other, resume_from=place)
    assert errors(report) == []
    assert {"training.learning_rate", "training.optimizer.weight_decay", "training.schedule.name"} <= {
        p.path for p in report.problems
    }
    assert "nothing" not in " ".join(p.message for p in report.problems), "the old schedule has no such field"
    (rate,) = [p for p in report.problems if p.path == "training.learning_rate"]
    before = f"{config.training.learning_rate!r}"
    assert (rate.severity, rate.message) == ("warning", f"The run was started with {before}, and resumes with 0.0002.")


def test_another_variant_is_reported_by_its_name(config: Config, tmp_path: Path) -> None:
    place = backup_of(config, tmp_path / "runs")
    other = changed(config, training__optimizer={"name": "adafactor"})
    report = check(other, resume_from=place)
    [problem] = [p for p in report.errors if p.path == "training.optimizer"]
    assert problem.message.startswith("The run was started with 'adamw', and the setting is now 'adafactor'.")
    assert not [path for path in errors(report) if path.startswith("training.optimizer.")]
    assert all(p.message.endswith(".") and p.advice for p in report.errors)


def test_a_list_is_reported_by_its_length(config: Config, tmp_path: Path) -> None:
    place = backup_of(config, tmp_path / "runs")
    fewer = changed(config, concepts=[{**config.concepts[0].model_dump(), "repeats": 2.0}])
    [problem] = check(fewer, resume_from=place).errors
    assert problem.path == "concepts"


def test_a_missing_backup_and_one_without_settings_are_reported(config: Config, tmp_path: Path) -> None:
    [problem] = check(config, resume_from=tmp_path / "nothing").errors
    assert "no complete backup" in problem.message
    write_backup(tmp_path / "runs" / "two", step=1, epoch=0, now=datetime(2026, 1, 1), write=lambda inside: None)
    [problem] = check(config, resume_from=tmp_path / "runs" / "two").errors
    assert "cannot be read" in problem.message


def test_a_renamed_folder_of_images_does_not_prevent_a_resume(config: Config, tmp_path: Path) -> None:
    """Correcting the folder, as the message asked, changed a setting that must not change: nothing could be done."""
    images, other = tmp_path / "images", tmp_path / "other"
    started, moved = (with_images(config, folder) for folder in (images, other))
    shutil.copytree(config.concepts[0].path, images)
    shutil.copytree(images, other)
    place = backup_of(started, tmp_path / "runs")
    assert errors(check(moved, resume_from=place)) == ["concepts"], "the images that it was started with are still here"
    shutil.rmtree(images)
    report = check(moved, resume_from=place)
    assert errors(report) == []
    (problem,) = [p for p in report.problems if p.path == "concepts.0.path"]
    message = f"The run was started with {images}, which is gone, and resumes with {other}."
    assert (problem.severity, problem.message) == ("warning", message)
    assert at_new_places(started, moved) == moved
    assert at_new_places(started, changed(moved, training__batch_size=7)) == started, "this may be another run"


def with_images(config: Config, folder: Path) -> Config:
    """Return a config whose only concept has its images in a folder."""
    return config.model_copy(update={"concepts": (config.concepts[0].model_copy(update={"path": str(folder)}),)})
