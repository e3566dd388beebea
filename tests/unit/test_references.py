"""Reference images: their sizes, the batches that hold them, and where their files are found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from modules.config.schema import Config
from modules.data import metadata
from modules.data.buckets import Size
from modules.data.dataset import Dataset
from modules.data.example import Example
from modules.data.inputs import REFERENCES
from modules.data.plans import EpochPlans
from modules.data.references import BatchShape, ReferenceFit, ReferenceSizes, num_pixels
from modules.data.stored_examples import map_examples, write_examples
from modules.data.transforms.recipe import plain_recipe
from tests.builders.configs import laid_over, small_config
from tests.builders.references import NUM_IMAGES, SECOND_PX, WITH_SECOND, WITH_THIRD, draw_referenced
from trainer.data.preview import ConceptPreview, trained_pixels
from trainer.jobs.preview import contact_sheet
from trainer.preflight import check
from trainer.preflight.missing_captions import problems_of_missing_captions

FOLDER = "concepts.0.image.conditioning_folder"
FOLDERS = ("conditioning_folder", "conditioning_folder_2", "conditioning_folder_3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return draw_referenced(tmp_path / "data")


@pytest.fixture
def config(folder: Path, tiny_flux_kontext: Path, tmp_path: Path) -> Config:
    config = small_config(tmp_path, model=tiny_flux_kontext, images=folder / "after")
    return laid_over(config, {"model": {"variant": "edit"}})


def of_concept(config: Config, image: dict[str, Any], **changes: Any) -> Config:
    concept = {**config.concepts[0].model_dump(), **changes, "image": image}
    return laid_over(config, {"concepts": [concept]})


def in_folders(config: Config, folder: Path) -> Config:
    places = ("before", "garment", "style")
    return of_concept(config, {name: str(folder / place) for name, place in zip(FOLDERS, places, strict=True)})


def names_of(example: Example) -> list[str]:
    files = example.input_files
    return [f"{files[n].path.parent.name}/{files[n].path.name}" for n in REFERENCES if n in files]


# -- sizes


@pytest.mark.parametrize(
    ("file", "size"),
    [((640, 480), (640, 480)), ((1000, 700), (992, 688)), ((3000, 2000), (1248, 832)), ((40, 5), (32, 16))],
)
def test_the_size_of_a_pipeline_is_at_most_its_area(file: tuple[int, int], size: tuple[int, int]) -> None:
    assert ReferenceSizes(16).way_of(Size(*file)).bucket == Size(*size)


@pytest.mark.parametrize(
    ("file", "size"), [((64, 64), (1024, 1024)), ((3000, 2000), (1248, 832)), ((1000, 10), (10240, 96))]
)
def test_a_reference_is_stretched_to_the_nearest_size_of_an_area(file: tuple[int, int], size: tuple[int, int]) -> None:
    way = ReferenceSizes(32, is_stretched=True).way_of(Size(*file))
    assert (way.bucket, way.scaled) == (Size(*size), Size(*size))


def test_a_preferred_size_is_that_of_the_nearest_aspect_ratio() -> None:
    sizes = ReferenceSizes(16, preferred=(Size(672, 1568), Size(1024, 1024), Size(1248, 832)))
    assert sizes.way_of(Size(300, 200)).scaled == Size(1248, 832)


def test_a_reference_follows_its_image_if_their_aspect_ratios_are_equal() -> None:
    fit, image, bucket = ReferenceFit(ReferenceSizes(16)), Size(500, 400), Size(80, 64)
    assert fit.size_of(Size(1000, 800), image, bucket) == bucket
    assert fit.size_of(Size(400, 100), image, bucket) == Size(128, 32), "as many pixels"
    assert ReferenceFit(ReferenceSizes(16), follows_image=False).size_of(Size(1000, 800), image, bucket) == Size(
        992, 800
    )


# -- batches


def test_a_batch_holds_images_with_references_of_the_same_sizes(config: Config, folder: Path) -> None:
    dataset = ConceptPreview(in_folders(config, folder), 0).dataset
    plans = EpochPlans(dataset, batch_size=2, accumulation_steps=1, run_seed=1)
    counts = {e.name: sum(n in e.input_files for n in REFERENCES) for e in dataset.examples}
    of_batches = [
        [counts[dataset.examples[s.example].name] for s in batch] for g in plans.accumulation_groups(0) for batch in g
    ]
    assert sorted(of_batches) == [[1, 1], [2, 2], [3, 3]]
    shapes = {row[0] for row in dataset.batch_shapes}
    assert BatchShape(64, 64, references=(Size(64, 64), Size(80, 32), Size(64, 64))) in shapes
    assert max(map(num_pixels, shapes)) == 3 * 64 * 64 + 80 * 32
    assert set(dataset.bucket_counts) == {Size(64, 64)}


def test_the_order_depends_on_the_references(config: Config, folder: Path) -> None:
    first = EpochPlans(
        ConceptPreview(in_folders(config, folder), 0).dataset, batch_size=2, accumulation_steps=1, run_seed=1
    )
    (folder / "style" / "0.png").unlink()
    other = EpochPlans(
        ConceptPreview(in_folders(config, folder), 0).dataset, batch_size=2, accumulation_steps=1, run_seed=1
    )
    assert first.fingerprint != other.fingerprint
    assert (first.num_steps(0), other.num_steps(0)) == (3, 4)


def test_another_process_plans_alike(config: Config, folder: Path, tmp_path: Path) -> None:
    dataset = ConceptPreview(in_folders(config, folder), 0).dataset
    write_examples(tmp_path / "examples", {"training": dataset.examples})
    mapped = replace(dataset, examples=(), buckets=()).with_stored(map_examples(tmp_path / "examples")["training"])
    assert list(mapped.batch_shapes) == list(dataset.batch_shapes)
    one, other = (EpochPlans(d, batch_size=2, accumulation_steps=1, run_seed=1) for d in (dataset, mapped))
    assert one.fingerprint == other.fingerprint
    assert one.accumulation_groups(0) == other.accumulation_groups(0)
    fewer = dataset.without(frozenset({0}))
    assert len(fewer.batch_shapes) == NUM_IMAGES - 1
    assert isinstance(fewer.batch_shapes[0][0], BatchShape)


# -- files


def test_references_are_found_in_folders(config: Config, folder: Path) -> None:
    found = [names_of(e) for e in ConceptPreview(in_folders(config, folder), 0).examples]
    assert [len(names) for names in found] == [1 + (n in WITH_SECOND) + (n in WITH_THIRD) for n in range(NUM_IMAGES)]
    assert found[0] == ["before/0.png", "garment/0.png", "style/0.png"]


def test_references_are_found_next_to_the_image(config: Config, folder: Path) -> None:
    for place, ending in (("before", ""), ("garment", "2"), ("style", "3")):
        for file in (folder / place).glob("*.png"):
            file.rename(folder / "after" / f"{file.stem}-condlabel{ending}.png")
    examples = ConceptPreview(config, 0).examples
    assert len(examples) == NUM_IMAGES, "references are not trained"
    assert names_of(examples[0]) == ["after/0-condlabel.png", "after/0-condlabel2.png", "after/0-condlabel3.png"]


def test_an_image_without_a_first_reference_has_the_second_as_its_first(config: Config, folder: Path) -> None:
    (folder / "before" / "3.png").unlink()
    assert names_of(ConceptPreview(in_folders(config, folder), 0).examples[3]) == ["garment/3.png"]


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "after" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def test_references_are_named_by_columns(config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the folder of their column, or from the file; a list, an empty cell, and a whole path.

    The file is read once for captions, and once for all columns: it was read for each column.
    """
    read = Mock(wraps=metadata.read_rows)
    monkeypatch.setattr(metadata, "read_rows", read)
    first, whole = {"text": "a", "control": "0.png"}, str(folder / "garment" / "1.png")
    further = [["../garment/0.png", "../style/0.png"], whole, None]
    rows = [{**first, "file_name": f"{n}.png", "more": more} for n, more in enumerate(further)]
    write_rows(folder, [*rows, *({"file_name": f"{n}.png", "text": "a"} for n in range(3, NUM_IMAGES))])
    image = {"conditioning_columns": "control, more", "conditioning_folder": str(folder / "before")}
    allowed = {"conditioning_folder_3": str(folder)}
    examples = ConceptPreview(of_concept(config, image | allowed, caption_source="metadata"), 0).examples
    assert names_of(examples[0]) == ["before/0.png", "garment/0.png", "style/0.png"]
    assert names_of(examples[1]) == ["before/0.png", "garment/1.png"]
    assert names_of(examples[2]) == ["before/0.png"]
    assert names_of(examples[3]) == []
    assert read.call_count == 2


def test_a_column_that_does_not_exist_is_reported(config: Config, folder: Path) -> None:
    """The images would be trained with the references of the other columns alone."""
    rows = [{"file_name": f"{n}.png", "text": "a", "control": f"../before/{n}.png"} for n in range(NUM_IMAGES)]
    write_rows(folder, [{**rows[0], "text": ""}, *rows[1:]])
    image = {"conditioning_columns": "control, contrl", "conditioning_folder_3": str(folder)}
    changed = of_concept(config, image, caption_source="metadata")
    found = ConceptPreview(changed, 0).dataset
    assert [names_of(example) for example in found.examples] == [[f"before/{n}.png"] for n in range(NUM_IMAGES)]
    problem, without = problems_of_missing_captions(changed, found, Dataset((), (), 1))
    assert problem.path == "concepts.0.image.conditioning_columns"
    assert "metadata.jsonl has no column 'contrl'; its columns are 'file_name', 'text', 'control'." in problem.message
    assert "1 image has no caption" in without.message


def test_a_named_reference_must_be_there_and_inside_of_the_folders(
    config: Config, folder: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "elsewhere.png"
    outside.write_bytes((folder / "before" / "0.png").read_bytes())
    rows = [{"file_name": f"{n}.png", "text": "a", "control": f"{n}.png"} for n in range(NUM_IMAGES)]
    rows[0]["control"], rows[1]["control"], rows[2]["control"] = "gone.png", str(outside), "../../elsewhere.png"
    rows[3]["control"] = ["3.png", "4.png", "5.png", "0.png"]  # type: ignore[assignment]
    write_rows(folder, rows)
    dataset = ConceptPreview(
        of_concept(config, {"conditioning_columns": "control"}, caption_source="metadata"), 0
    ).dataset
    reasons = {s.path.name: s.reason for s in dataset.skipped}
    assert [e.name for e in dataset.examples] == ["4.png", "5.png"]
    assert "'gone.png' is not in" in reasons["0.png"]
    assert "is not in" in reasons["1.png"]
    assert "is not in" in reasons["2.png"]
    assert "names 4 reference images, and the model gets at most 3" in reasons["3.png"]


# -- what is shown


def test_the_preview_shows_all_references(config: Config, folder: Path) -> None:
    preview = ConceptPreview(in_folders(config, folder), 0)
    pixels = preview.use(preview.uses(0)[0]).pixels
    assert pixels is not None
    assert pixels.size == (64 + 80 + 64 + 64, 64), "in their order, and the image at the right"


def test_the_sheet_shows_references_at_their_size(config: Config, folder: Path) -> None:
    sheet = contact_sheet(in_folders(config, folder), num_images=1, num_epochs=1, num_draws=1)
    assert sheet.width > 0
    [first, *_] = ConceptPreview(in_folders(config, folder), 0).examples
    dataset = ConceptPreview(in_folders(config, folder), 0).dataset
    assert trained_pixels(first, plain_recipe(first.resize_crops[0]), dataset.fit).size == (272, 64)


def test_missing_references_are_named(config: Config, folder: Path) -> None:
    """An image without any among others that have one is an error; fewer are allowed, and so is a concept of none."""
    found = check(in_folders(config, folder)).problems
    [fewer] = [p for p in found if "fewer reference images" in p.message]
    assert fewer.severity == "info"
    assert fewer.message.startswith("4 of 6 images have fewer")
    assert "(2 with 1 reference image, 2 with 2 reference images, 2 with 3 reference images)" in fewer.message
    (folder / "before" / "5.png").unlink()
    missing = {p.path: p.message for p in check(in_folders(config, folder)).errors}
    assert missing[FOLDER].startswith("1 of 6 images has no reference image; the first is 5.png.")
    concepts = [c.model_dump() for c in (in_folders(config, folder).concepts[0], config.concepts[0])]
    concepts[0]["excluded"] = "5.png"
    plain = check(laid_over(config, {"concepts": concepts}))
    assert not plain.errors
    assert any("from their captions alone" in p.message for p in plain.problems)


def test_a_folder_that_does_not_exist_is_named(config: Config, folder: Path) -> None:
    image = {"conditioning_folder": str(folder / "before"), "conditioning_folder_3": str(folder / "gone")}
    assert "concepts.0.image.conditioning_folder_3" in {p.path for p in check(of_concept(config, image)).errors}


def test_changed_references_are_seen(config: Config, folder: Path) -> None:
    datasets = check(in_folders(config, folder)).datasets
    assert datasets is not None
    assert datasets.is_current()
    (folder / "style" / "1.png").unlink()
    assert not datasets.is_current()


def test_the_second_reference_keeps_its_aspect_ratio(config: Config, folder: Path) -> None:
    [first, *_] = ConceptPreview(in_folders(config, folder), 0).examples
    assert first.input_files[REFERENCES[1]].size == Size(*SECOND_PX)
    assert not [p for p in check(in_folders(config, folder)).problems if "aspect ratio" in p.message]
