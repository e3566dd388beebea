"""Concepts, their folders and their images."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.data import datasets
from tests.builders.images import draw_folder
from tests.builders.shards import draw_shard
from tests.unit.preflight.setups import changed, errors, reported
from trainer.__main__ import main
from trainer.jobs import check as check_verb
from trainer.preflight import check


def test_a_concept_that_is_not_readable(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        assert errors(check(config)) == ["concepts.0.path"]

    def vanish(*args: object, **options: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "images")

    with monkeypatch.context() as patch:
        patch.setattr(datasets, "build_dataset", vanish)
        report = check(config)
    assert errors(report) == ["concepts"]
    assert report.preview is None


def test_an_unused_concept_is_a_warning_beside_others(config: Config, tmp_path: Path) -> None:
    other = str(draw_folder(tmp_path / "other", sizes=[(64, 64)]))
    both = changed(config, concepts=[config.concepts[0].model_dump(), {"path": other, "repeats": 0}])
    assert reported(check(both)) == [("concepts.1.repeats", "warning")]


def test_excluded_images_are_stated_but_no_skipped_files(config: Config, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "more", sizes=[(64, 64)] * 3)
    some = changed(config, concepts__0__path=str(folder), concepts__0__excluded="001.png")
    report = check(some)
    assert [p.message for p in report.problems if "excluded" in p.message] == [
        "more: 1 image is excluded by the concept."
    ]
    assert report.preview is not None
    assert (report.preview.num_images, report.preview.skipped) == (2, ())
    report = check(changed(some, concepts__0__excluded="000.png\n001.png\n002.png"))
    assert errors(report) == ["concepts.0.path"]
    assert "contains no readable image: more: 3 images are excluded by the concept" in report.problems[0].message


def test_images_without_captions_and_skipped_files_are_counted(config: Config, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "more", sizes=[(64, 64)] * 3)
    (folder / "001.txt").unlink()
    (folder / "empty.png").write_bytes(b"")
    Image.new("RGB", (8, 8)).save(folder / "._002.png")
    report = check(changed(config, concepts__0__path=str(folder)))
    messages = [p.message for p in report.problems if p.severity == "warning"]
    assert messages == [
        "2 files are skipped (._002.png: a hidden file; empty.png: an empty file).",
        "1 image has no caption and is trained without one; the first is 001.png: 001.txt does not exist or cannot be "
        "read.",
    ]
    assert report.preview is not None
    assert report.preview.num_without_caption == 1
    assert dict(report.preview.skipped) == {
        str(folder / "._002.png"): "a hidden file",
        str(folder / "empty.png"): "an empty file",
    }


def test_the_reason_is_reported_if_all_files_are_skipped(config: Config, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"")
    [problem] = check(changed(config, concepts__0__path=str(tmp_path / "broken"))).errors
    assert problem.message.endswith(": 1 file is skipped (a.png: an empty file).")


def test_a_concept_of_small_images_is_not_called_unreadable(config: Config, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "small", sizes=[(20, 30)])
    [problem] = check(
        changed(config, concepts__0__path=str(folder), data__min_side_px=32, data__never_upscale=True)
    ).errors
    assert "has no image that is large enough: 1 file is skipped (000.png: smaller than" in problem.message
    assert problem.advice == (
        "To train them, lower the minimum size or switch off Never upscale, or use larger images."
    )


def test_skipped_and_too_small_images_are_listed_one_by_one(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few in the message, which the window shows, and all by the check."""
    folder = draw_folder(tmp_path / "some", sizes=[(64, 64), (64, 64), (20, 30), (64, 15)])
    reasons = {"002.png": "smaller than the minimum of 32 px (20x30)",
               "003.png": "smaller than the minimum of 32 px (64x15)"}  # fmt: skip
    for number in range(7):
        (folder / f"e{number}.png").write_bytes(b"")
        reasons[f"e{number}.png"] = "an empty file"
    small = changed(config, concepts__0__path=str(folder), data__min_side_px=32)
    faulty, too_small = [p for p in check(small).problems if "skipped" in p.message]
    assert faulty.message.startswith("7 files are skipped (")
    assert faulty.message.endswith("; and 2 more).")
    assert sum(reason in faulty.message for reason in (f"{n}: {r}" for n, r in reasons.items())) == 5
    assert too_small.message.startswith("2 files are skipped (")
    assert too_small.advice == "To train them, lower the minimum size, or use larger images."
    save_file(small, tmp_path / "config.json")
    main(["check", str(tmp_path / "config.json")])
    printed = capsys.readouterr().out
    assert all(f"  {folder / name}: {reason}\n" in printed for name, reason in reasons.items())
    monkeypatch.setattr(check_verb, "_MAX_SKIPPED", 3)
    main(["check", str(tmp_path / "config.json")])
    assert "  and 6 more; --json lists all\n" in capsys.readouterr().out
    main(["check", str(tmp_path / "config.json"), "--json"])
    skipped = json.loads(capsys.readouterr().out)["preview"]["skipped"]
    assert {Path(file).name: reason for file, reason in skipped} == reasons


# -- the same thing twice


def two(config: Config, first: Path, second: Path, **changes: Any) -> Config:
    return changed(config, concepts=[{"path": str(first)}, {"path": str(second), **changes}])


def test_two_concepts_of_one_folder(config: Config, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "one", sizes=[(64, 64)] * 2)
    assert reported(check(two(config, folder, folder))) == [("concepts.1.path", "warning")]
    (tmp_path / "link").symlink_to(folder)
    for spelled in (folder / ".." / "one", tmp_path / "link"):
        [problem] = check(two(config, folder, spelled)).problems
        assert "used twice" in problem.message
    assert reported(check(two(config, folder, folder, enabled=False))) == []


def test_images_for_both_training_and_validation(config: Config, tmp_path: Path) -> None:
    """By their content: a copy under another name is the same image."""
    training = draw_folder(tmp_path / "training", sizes=[(64, 64)] * 3)
    validation = draw_folder(tmp_path / "validation", sizes=[(96, 64)] * 2)
    assert reported(check(two(config, training, validation, kind="validation"))) == []
    (validation / "copy.png").write_bytes((training / "001.png").read_bytes())
    (validation / "copy.txt").write_text("a copy")
    [problem] = check(two(config, training, validation, kind="validation")).problems
    assert (problem.path, problem.severity) == ("concepts.1.path", "warning")
    assert problem.message.startswith("1 image is used for both training and validation, the first is copy.png")
    [problem] = check(two(config, training, training, kind="validation")).problems
    assert problem.message.startswith("3 images are used for both")


def test_files_of_one_size_that_differ_are_not_the_same_image(config: Config, tmp_path: Path) -> None:
    training, validation = tmp_path / "training", tmp_path / "validation"
    for folder, colour in ((training, 10), (validation, 200)):
        folder.mkdir()
        Image.new("RGB", (64, 64), (colour,) * 3).save(folder / "a.bmp")
        (folder / "a.txt").write_text("grey")
    config = changed(config, training__batch_size=1)
    assert (training / "a.bmp").stat().st_size == (validation / "a.bmp").stat().st_size
    assert reported(check(two(config, training, validation, kind="validation"))) == []


# -- other sources


def test_a_single_image_a_shard_and_metadata_are_sources(config: Config, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "one", sizes=[(64, 64)] * 2)
    shard = draw_shard(tmp_path / "a.tar", sizes=[(64, 64)] * 2)
    for path in (folder / "000.png", shard):
        report = check(changed(config, concepts__0__path=str(path), training__batch_size=1))
        assert reported(report) == []
        assert report.preview is not None
    (folder / "metadata.jsonl").write_text('{"file_name": "gone.png", "text": "a"}\n{"file_name": "000.png"}\n')
    named = changed(config, concepts__0__path=str(folder), concepts__0__caption_source="metadata")
    messages = [p.message for p in check(named).problems]
    assert "1 file is skipped (metadata.jsonl: names images that are not there: 'gone.png')." in messages
    assert any(m.startswith("2 images have no caption") for m in messages)


def test_regularization_images_are_counted_and_named(config: Config, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "one", sizes=[(64, 64)] * 2)
    (tmp_path / "empty").mkdir()
    both = two(config, folder, tmp_path / "empty", kind="regularization")
    assert errors(check(both)) == ["concepts.1.path"]
    alone = changed(config, concepts=[{"path": str(folder), "kind": "regularization"}])
    assert "concepts" in errors(check(alone))
    unused = two(config, folder, folder, kind="regularization", balancing="samples", samples_per_epoch=0)
    assert ("concepts.1.samples_per_epoch", "warning") in reported(check(unused))


def test_a_metadata_file_that_is_not_used_is_named(config: Config, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "one", sizes=[(64, 64)] * 2)
    (folder / "metadata.jsonl").write_text('{"file_name": "000.png", "text": "a"}\n')
    config = changed(config, concepts__0__path=str(folder), training__batch_size=1)
    assert reported(check(config)) == []
    (folder / "001.txt").unlink()
    assert ("concepts.0.caption_source", "warning") in reported(check(config))
