"""Files and columns of captions that do not exist are errors; what to do about a missing caption fits its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.problem import Problem
from tests.builders.images import draw_folder
from tests.unit.preflight.setups import changed, errors, reported
from trainer.preflight import check
from trainer.preflight.doctor import look_at


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two images without captions beside them."""
    folder = draw_folder(tmp_path / "bare", sizes=[(64, 64)] * 2)
    for file in folder.glob("*.txt"):
        file.unlink()
    return folder


def with_concept(config: Config, folder: Path, **concept: Any) -> Config:
    return changed(config, concepts=[{"path": str(folder), "name": "cats", **concept}], training__batch_size=1)


def write_rows(file: Path, **row: str) -> None:
    file.write_text("".join(json.dumps({"file_name": f"00{n}.png", **row}) + "\n" for n in range(2)))


def without_a_caption(config: Config) -> Problem:
    [problem] = [p for p in check(config).problems if "no caption" in p.message]
    assert problem.severity == "warning"
    return problem


@pytest.mark.parametrize("kind", ["training", "validation"])
def test_a_missing_column_is_an_error_that_names_the_others(config: Config, folder: Path, kind: str) -> None:
    """It used to be a warning about a skipped file."""
    write_rows(folder / "metadata.jsonl", short="a cat")
    concept = {"path": str(folder), "name": "cats", "kind": kind, "caption_source": "metadata"}
    both = changed(config, concepts=[config.concepts[0].model_dump(), {**concept, "caption_columns": "short, long"}])
    report = check(both)
    assert errors(report) == ["concepts.1.caption_columns"]
    [error] = report.errors
    assert error.message == (
        "The captions of the concept cats cannot be read: metadata.jsonl has no column 'long'; its columns are "
        "'file_name', 'short'."
    )
    assert "Caption columns" in error.advice
    unnamed = check(changed(both, concepts__1__caption_columns=""))
    assert errors(unnamed) == ["concepts.1.caption_columns"]
    assert "'file_name', 'short'" in unnamed.errors[0].message
    assert not [p for p in unnamed.problems if "skipped" in p.message or "no caption" in p.message]
    assert unnamed.preview is not None
    assert unnamed.preview.skipped == ()
    assert errors(check(changed(both, concepts__1__caption_columns="short"))) == []


def test_a_missing_or_useless_metadata_file_is_an_error(config: Config, folder: Path, tmp_path: Path) -> None:
    for content in (None, "{", '{"name": {"caption": "a"}}', '[{"image_id": 3, "text": "a cat"}]'):
        if content is not None:
            (tmp_path / "all.json").write_text(content)
        chosen = with_concept(config, folder, caption_source="metadata", metadata_file=str(tmp_path / "all.json"))
        expected = [] if content and "name" in content else ["concepts.0.metadata_file"]
        assert errors(check(chosen)) == expected, content


def test_many_files_with_one_fault_are_one_error(config: Config, folder: Path) -> None:
    write_rows(folder / "metadata.jsonl", short="a cat")
    below = draw_folder(folder / "below", sizes=[(64, 64)] * 2)
    write_rows(below / "metadata.jsonl", short="a cat")
    [error] = check(with_concept(config, folder, caption_source="metadata", include_subfolders=True)).errors
    assert error.message.endswith("'short'. The same applies to 1 other file.")


def test_a_missing_shared_captions_file_is_an_error(config: Config, folder: Path, tmp_path: Path) -> None:
    for given in ("", str(tmp_path / "gone.txt"), str(tmp_path)):
        shared = with_concept(config, folder, caption_source="one_file", captions_file=given)
        report = check(shared)
        assert errors(report) == ["concepts.0.captions_file"], given
        assert not [p for p in report.problems if "no caption" in p.message]
        with pytest.raises(DarkroomError):
            look_at(shared)
    assert "none is chosen" in check(with_concept(config, folder, caption_source="one_file")).errors[0].message
    (tmp_path / "all.txt").write_text("a cat")
    there = with_concept(config, folder, caption_source="one_file", captions_file=str(tmp_path / "all.txt"))
    assert reported(check(there)) == []


@pytest.mark.parametrize(
    ("concept", "advice"),
    [
        ({}, "Add a .txt file of the same name"),
        ({"caption_extension": ".caption"}, "Add a .caption file of the same name"),
        ({"caption_source": "metadata"}, "Add a row with a caption for each image to the metadata file"),
        ({"caption_source": "one_file", "captions_file": "EMPTY"}, "Write the captions in EMPTY"),
        ({"caption_source": "fixed_text"}, "Enter the fixed caption"),
    ],
)
def test_the_advice_fits_the_source_of_the_captions(
    config: Config, folder: Path, tmp_path: Path, concept: dict[str, str], advice: str
) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    concept = {k: v.replace("EMPTY", str(tmp_path / "empty.txt")) for k, v in concept.items()}
    problem = without_a_caption(with_concept(config, folder, **concept))
    assert problem.advice.startswith(advice.replace("EMPTY", str(tmp_path / "empty.txt")))


def test_file_names_without_text_are_to_be_changed(config: Config, folder: Path) -> None:
    (folder / "000.png").rename(folder / "_.png")
    problem = without_a_caption(with_concept(config, folder, caption_source="file_name"))
    assert problem.message.startswith("1 image has no caption")
    assert problem.advice.startswith("Rename the images")


def test_concepts_with_different_sources_have_their_own_advice(config: Config, folder: Path, tmp_path: Path) -> None:
    other = draw_folder(tmp_path / "other", sizes=[(96, 64)])
    concepts = [{"path": str(folder)}, {"path": str(other), "caption_source": "fixed_text"}]
    found = [p for p in check(changed(config, concepts=concepts)).problems if "no caption" in p.message]
    assert [p.message.split(" no ")[0] for p in found] == ["2 images have", "1 image has"]
    assert [p.advice.split(" ")[0] for p in found] == ["Add", "Enter"]


def test_a_parquet_file_without_captions_is_a_warning(config: Config, folder: Path, tmp_path: Path) -> None:
    """Its columns are used without being asked for."""
    import pyarrow
    from pyarrow import parquet

    rows = [{"image": {"bytes": (folder / "000.png").read_bytes(), "path": "000.png"}, "label": "cat"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    plain = with_concept(config, tmp_path / "a.parquet")
    report = check(plain)
    assert reported(report) == [("concepts.0.caption_source", "warning")]
    assert "'label'" in report.problems[0].message
    assert reported(check(changed(plain, concepts__0__caption_source="metadata"))) == [
        ("concepts.0.caption_columns", "error")
    ]
