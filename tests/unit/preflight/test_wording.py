"""A check reports each problem once, for the field that is wrong, in readable words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.config.support import unsupported
from modules.data.buckets import Size
from tests.builders.images import draw_folder
from tests.unit.preflight.setups import changed
from trainer.preflight import check
from trainer.preflight.budget import disk_problems


def test_a_rate_of_0_for_all_parts_is_one_error(config: Config) -> None:
    [problem] = [p for p in check(changed(config, training__learning_rate=0.0)).problems if p.severity == "error"]
    assert problem.path == "training.learning_rate"


def test_an_embedding_is_rejected_once(config: Config) -> None:
    """The list of its words used to be rejected too, with the advice to empty it."""
    words = [{"placeholder": "<zog>"}]
    alone = changed(config, training__trains="embedding", embeddings__words=words)
    assert [p.path for p in unsupported(alone)] == ["training.trains"]
    assert [p.path for p in unsupported(changed(config, embeddings__words=words))] == ["embeddings.words"]


@pytest.mark.parametrize(("value", "shown"), [(0.5, "0.5"), (1.0, "1")])
def test_numbers_are_shown_as_people_write_them(config: Config, value: float, shown: str) -> None:
    [problem] = unsupported(changed(config, training__loss__huber_strength=value))
    assert problem.message.endswith(f": {shown} is not supported yet.")
    assert problem.advice == "Set it back to 0."


def test_a_folder_without_free_space_is_reported_once(config: Config) -> None:
    """It used to be reported twice for a folder that is not writable, such as /proc."""
    free: dict[str, Any] = {"num_captions": 1, "total_steps": 1, "free": lambda path: 0}

    problems = list(disk_problems(config, {Size(64, 64): 4}, **free))
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


def test_the_advice_names_possible_side_lengths(config: Config) -> None:
    report = check(changed(config, data__bucket_step_px=64, data__resolution_px=[500]))
    [problem] = [p for p in report.problems if p.path == "data.resolution_px"]
    assert problem.advice == "Use 448 or 512."
