"""What a check says is said once, of the field that is wrong, and in words that can be read out."""

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


def test_a_rate_of_0_for_all_parts_is_one_fault(config: Config) -> None:
    [problem] = [p for p in check(changed(config, training__learning_rate=0.0)).problems if p.severity == "error"]
    assert problem.path == "training.learning_rate"


def test_an_embedding_is_refused_once(config: Config) -> None:
    """The list of its words was refused beside it, with the advice to empty it."""
    words = [{"placeholder": "<zog>"}]
    alone = changed(config, training__trains="embedding", embeddings__words=words)
    assert [p.path for p in unsupported(alone)] == ["training.trains"]
    assert [p.path for p in unsupported(changed(config, embeddings__words=words))] == ["embeddings.words"]


@pytest.mark.parametrize(("value", "said"), [(0.5, "0.5"), (1.0, "1")])
def test_numbers_are_shown_as_people_write_them(config: Config, value: float, said: str) -> None:
    [problem] = unsupported(changed(config, training__loss__huber_strength=value))
    assert problem.message.endswith(f": {said} is not supported yet.")
    assert problem.advice == "Set it back to 0."


def test_a_place_without_any_room_is_not_said_to_have_too_little(config: Config) -> None:
    """It was told twice where nothing can be written, as in /proc."""
    free: dict[str, Any] = {"num_captions": 1, "total_steps": 1, "free": lambda path: 0}

    problems = list(disk_problems(config, {Size(64, 64): 4}, **free))
    assert not [p for p in problems if p.severity == "error"]


def test_a_folder_of_nothing_but_broken_files_is_told_once(config: Config, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"")
    report = check(changed(config, concepts__0__path=str(tmp_path / "broken")))
    assert [p.path for p in report.problems if "passed over" in p.message] == ["concepts.0.path"]


def test_one_is_no_plural(config: Config, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "more", sizes=[(64, 64)] * 2)
    (folder / "001.txt").unlink()
    (folder / "empty.png").write_bytes(b"")
    told = [p.message for p in check(changed(config, concepts__0__path=str(folder))).problems]
    assert any(m.startswith("1 image has no caption and is") for m in told)
    assert any(m.startswith("1 file is passed over") for m in told)


def test_what_a_side_can_be_instead_is_said(config: Config) -> None:
    report = check(changed(config, data__bucket_step_px=64, data__resolution_px=[500]))
    [problem] = [p for p in report.problems if p.path == "data.resolution_px"]
    assert problem.advice == "Use 448 or 512."
