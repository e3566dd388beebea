"""Masks beside the images, and embedding placeholders in the captions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from tests.builders.images import draw_folder, draw_image
from tests.unit.preflight.setups import changed
from trainer.data.datasets import datasets_of
from trainer.preflight.companions import problems_of_companions


def reported(config: Config) -> list[tuple[str, str]]:
    """Return the problems of companions alone; masked training and embeddings are also not supported yet."""
    training = datasets_of(config).training
    found = list(problems_of_companions(config, training))
    assert all(p.advice or p.severity == "info" for p in found)
    return [(p.path, p.severity) for p in found]


def test_masked_training_wants_masks(config: Config, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "masked", sizes=[(64, 64)] * 2)
    masked = changed(config, concepts__0__path=str(folder), masks__enabled=True)
    assert reported(masked) == [("masks.enabled", "error")]
    draw_image(64, 64, 0).convert("L").save(folder / "000-masklabel.png")
    assert reported(masked) == [("masks.enabled", "info")]
    draw_image(64, 64, 0).convert("L").save(folder / "001-masklabel.png")
    assert reported(masked) == []
    assert reported(changed(masked, concepts__0__excluded="001.png\n/")) == [], "the mask of an excluded image"
    assert reported(changed(config, concepts__0__path=str(tmp_path / "masked"))) == []


@pytest.mark.parametrize("name", ["001-masklabel.jpg", "gone-masklabel.png"])
def test_masks_of_no_image_are_named(config: Config, tmp_path: Path, name: str) -> None:
    """They were ignored without a word, as in OneTrainer."""
    folder = draw_folder(tmp_path / "masked", sizes=[(64, 64)] * 2)
    (folder / "broken.png").write_bytes(b"")
    draw_image(64, 64, 0).save(folder / "broken-masklabel.png")
    draw_image(64, 64, 0).save(folder / "000-masklabel.png")
    (folder / "._000-masklabel.png").write_bytes(b"written by macOS")
    masked = changed(config, concepts__0__path=str(folder), masks__enabled=True)
    assert reported(masked) == [("masks.enabled", "info")]
    draw_image(64, 64, 0).save(folder / name)
    *_, problem = problems_of_companions(masked, datasets_of(masked).training)
    assert problem.message == f"1 mask file belongs to no image of its folder; the first is {name}."
    beside = changed(config, concepts__0__path=str(folder), concepts__0__image={"mask_source": "alpha"})
    assert reported(changed(beside, masks__enabled=True)) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], []),
        ([{"placeholder": "number"}], []),
        ([{"placeholder": "<zog>"}], [("embeddings.words.0.placeholder", "error")]),
        ([{"placeholder": "<zog>", "train": False}], []),
        ([{"placeholder": "number"}, {"placeholder": " "}], [("embeddings.words.1.placeholder", "error")]),
        (
            [{"placeholder": "number"}, {"placeholder": "number"}],
            [("embeddings.words.1.placeholder", "error")],
        ),
    ],
)
def test_the_placeholders_of_embeddings(
    config: Config, words: list[dict[str, Any]], expected: list[tuple[str, str]]
) -> None:
    assert reported(changed(config, embeddings__words=words)) == expected
