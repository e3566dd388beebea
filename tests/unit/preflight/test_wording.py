"""A check reports each problem once, for the field that is wrong, in readable words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import save_file
from modules.config.rules.every_setting import _refusal
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.settings.field import FieldRecord, Setting
from modules.system.problem import count
from tests.builders.budgets import budget_of_run
from tests.builders.images import draw_folder
from tests.unit.preflight.setups import changed
from trainer.__main__ import main
from trainer.preflight import check
from trainer.preflight.budget import disk_problems


def test_a_rate_of_0_for_all_parts_is_one_error(config: Config) -> None:
    [problem] = [p for p in check(changed(config, training__learning_rate=0.0)).problems if p.severity == "error"]
    assert problem.path == "training.learning_rate"


@pytest.mark.parametrize(("value", "shown"), [(0.5, "0.5"), (1.0, "1")])
def test_numbers_are_shown_as_people_write_them(value: float, shown: str) -> None:
    setting = Setting("Strength", "A number that is not supported, of which there may be none.", not_yet="refused")
    problem = _refusal(FieldRecord("made.up", "up", "float", 0.0, setting), value)
    assert problem.message.endswith(f": {shown} is not supported yet.")
    assert problem.advice == "Set it back to 0."


def test_a_folder_without_free_space_is_reported_once(config: Config) -> None:
    """It used to be reported twice for a folder that is not writable, such as /proc."""
    free: dict[str, Any] = {"num_captions": 1, "total_steps": 1, "free": lambda path: 0}
    sizes = {Size(64, 64): 4}
    published = changed(config, model__base_model="stable-diffusion-v1-5/stable-diffusion-v1-5")
    problems = list(disk_problems(budget_of_run(published, sizes), sizes, **free))
    assert not [p for p in problems if p.severity == "error"]


def test_a_folder_with_only_broken_files_is_reported_once(config: Config, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"")
    report = check(changed(config, concepts__0__path=str(tmp_path / "broken")))
    assert [p.path for p in report.problems if "skipped" in p.message] == ["concepts.0.path"]


def test_one_is_singular(config: Config, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "more", sizes=[(64, 64)] * 2)
    (folder / "001.txt").unlink()
    (folder / "empty.png").write_bytes(b"")
    reported = [p.message for p in check(changed(config, concepts__0__path=str(folder))).problems]
    assert any(m.startswith("1 image has no caption and is") for m in reported)
    assert any(m.startswith("1 file is skipped") for m in reported)


_ONE_AS_MANY = re.compile(
    r"(?<![\d,.x])1 (more )?(images|batches|sizes|steps|captions|samples|files|entries)\b"
    r"|(?<![\d,.x])1 (of \d+ )?\w+ (of image )?(are|have)\b"
)


@pytest.mark.parametrize(
    "changes",
    [
        {"training__accumulation_steps": 4, "training__batch_size": 1},
        {"training__batch_size": 4, "data__partial_batches": "drop", "concepts__0__repeats": 1},
        {"training__batch_size": 2, "data__partial_batches": "drop", "concepts__0__repeats": 1.5},
        {"masks__enabled": True, "training__batch_size": 1},
        {"embeddings__words": [{"placeholder": "<zog>"}], "training__batch_size": 1},
        {"training__schedule__warmup_steps": 1, "training__epochs": 1, "training__batch_size": 1},
        {"parts__unet__stop_after": {"n": 1, "unit": "step"}, "training__batch_size": 1},
    ],
)
@pytest.mark.parametrize("num_images", [1, 2])
def test_of_one_no_plural_is_used(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], num_images: int
) -> None:
    """A check used to say "1 sizes of image have" and "an epoch has only 1 batches"."""
    folder = draw_folder(tmp_path / "one", sizes=[(64, 64), (128, 64)][:num_images], captions=["cat " * 90, "cat"])
    save_file(changed(config, concepts__0__path=str(folder), **changes), tmp_path / "config.json")
    main(["check", str(tmp_path / "config.json"), "--images"])
    printed = capsys.readouterr().out
    assert "in the first epoch" in printed
    for line in printed.splitlines():
        assert not _ONE_AS_MANY.search(line), line


def test_numbers_have_the_right_unit() -> None:
    assert [count(n, "batch", "batches") for n in (0, 1, 1200)] == ["0 batches", "1 batch", "1,200 batches"]
    assert [count(n, "step") for n in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]


def test_the_advice_names_possible_side_lengths(config: Config) -> None:
    report = check(changed(config, data__bucket_step_px=64, data__resolution_px=[500]))
    [problem] = [p for p in report.problems if p.path == "data.resolution_px"]
    assert problem.advice == "Use 448 or 512."
