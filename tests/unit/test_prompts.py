"""Prompts concepts: files of prompts in, examples of the right sizes and captions out."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from modules.data.buckets import BucketRules, Size
from modules.data.captions.settings import CaptionChanges
from modules.data.concept import Concept
from modules.data.conditioning import SizeConditioning
from modules.data.dataset import Dataset, build_dataset, concept_repeats_of
from modules.data.datasets import DatasetSettings, build_datasets
from modules.data.image_settings import ImageChanges
from modules.data.plan_table import as_csv, describe_buckets, describe_images, plan_rows
from modules.data.plans import EpochPlans
from modules.data.prompts import scan_prompts
from modules.data.versions import ImageVersions
from tests.builders.images import draw_folder

RULES = BucketRules((64,), step_px=16, max_aspect_ratio=2.0, is_bucketing=True)
LINES = "# colours\na red ball\n\n  a blue ball  \n#a green ball\na cat, a dog\n"


def texts(file: Path, columns: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    return [p.captions for p in scan_prompts(file, include_subfolders=False, columns=columns).images]


def build(concept: Concept, source: Path, rules: BucketRules = RULES) -> Dataset:
    return build_dataset([(concept, source)], "training", rules)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text(LINES, encoding="utf-8")
    return file


# -- files


def test_a_text_file_has_a_prompt_per_line_without_comments(prompts: Path) -> None:
    scan = scan_prompts(prompts, include_subfolders=False)
    assert [p.captions for p in scan.images] == [("a red ball",), ("a blue ball",), ("a cat, a dog",)]
    assert [p.path for p in scan.images] == [prompts / "line 2", prompts / "line 4", prompts / "line 6"]
    assert not any(p.has_image for p in scan.images)
    assert scan.skipped == ()


def test_text_in_another_encoding_is_read_and_reported(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes("caf\u00e9 \u2013 night".encode("cp1252"))
    (found,) = scan_prompts(tmp_path / "p.txt", include_subfolders=False).images
    assert found.captions == ("caf\u00e9 \u2013 night",)
    assert (found.caption_fault, found.caption_file) == ("cp1252", tmp_path / "p.txt")


ROWS = [{"prompt": "one", "n": 1}, {"prompt": ""}, {"prompt": "two", "other": ["x", "y"]}]


def write_rows(file: Path) -> Path:
    match file.suffix:
        case ".jsonl":
            file.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
        case ".csv":
            file.write_text("n,prompt,other\n1,one,\n2,,\n3,two,x\n", encoding="utf-8")
        case ".tsv":
            file.write_text("n\tprompt\tother\n1\tone\t\n2\t\t\n3\ttwo\tx\n", encoding="utf-8")
        case ".parquet":
            columns = {"image": [b"\x89PNG"] * 3, "prompt": ["one", None, "two"], "other": ["", "", "x"]}
            parquet.write_table(pyarrow.table(columns), file)
    return file


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_a_table_has_a_prompt_per_row(tmp_path: Path, suffix: str) -> None:
    file = write_rows(tmp_path / f"p{suffix}")
    scan = scan_prompts(file, include_subfolders=False)
    assert [p.captions for p in scan.images] == [("one",), ("two",)]
    assert [p.path.name for p in scan.images] == ["row 1", "row 3"]
    assert texts(file, ("other",))[0][0] == "x"


def test_the_problems_of_a_table_are_named(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"words": "a"}\nnot json\n', encoding="utf-8")
    scan = scan_prompts(file, include_subfolders=False)
    assert scan.images == ()
    reasons = " ".join(s.reason for s in scan.skipped)
    assert "line 2: not a JSON object" in reasons
    assert 'has no column text, caption or prompt; its columns are "words"' in reasons.replace("'", '"')
    missing = scan_prompts(file, include_subfolders=False, columns=("words", "tag")).skipped
    assert any("has no column" in s.reason and "tag" in s.reason for s in missing)


def test_a_folder_is_all_of_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second", encoding="utf-8")
    (tmp_path / "a.csv").write_text("caption\nfirst\n", encoding="utf-8")
    (tmp_path / "image.png").write_bytes(b"")
    (tmp_path / ".hidden.txt").write_text("no", encoding="utf-8")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.txt").write_text("third", encoding="utf-8")
    assert texts(tmp_path) == [("first",), ("second",)]
    deep = scan_prompts(tmp_path, include_subfolders=True)
    assert [p.captions for p in deep.images] == [("first",), ("second",), ("third",)]


def test_another_kind_of_file_is_skipped_and_said(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"x")
    scan = scan_prompts(tmp_path / "cat.png", include_subfolders=False)
    assert scan.images == ()
    assert "not a file of prompts" in scan.skipped[0].reason


# -- examples


@pytest.mark.parametrize(
    ("own", "rules", "sizes"),
    [
        ((), RULES, [Size(64, 64)]),
        ((96,), RULES, [Size(96, 96)]),
        (("96x64",), RULES, [Size(96, 64)]),
        ((), BucketRules((64,), 16, 2.0, is_bucketing=True, fixed=Size(96, 48)), [Size(96, 48)]),
        ((64, "100x70"), RULES, [Size(64, 64), Size(96, 64)]),
        ((), BucketRules((64, 96), 16, 2.0, is_bucketing=True, aspect_ratios="fixed"), [Size(64, 64), Size(96, 96)]),
    ],
)
def test_the_size_of_prompts_is_a_square_or_the_given_size(
    prompts: Path, own: tuple[int | str, ...], rules: BucketRules, sizes: list[Size]
) -> None:
    dataset = build(Concept(kind="prompts", image=ImageChanges(resolution_px=own)), prompts, rules)
    assert [list(b) for b in dataset.buckets] == [sizes] * 3
    assert all(c.is_exact for e in dataset.examples for c in e.resize_crops)


def test_augmentations_of_images_do_not_apply_and_the_size_conditioning_is_whole(prompts: Path) -> None:
    changes = ImageChanges(flip="random", crop_jitter=True, resolution_px=(64, "96x64"))
    dataset = build(Concept(kind="prompts", image=changes, image_variations=4), prompts)
    versions = list(ImageVersions(dataset, run_seed=1, is_cached=True).all_versions())
    assert len(versions) == 3 * 2
    assert {v.size_conditioning for v in versions} == {SizeConditioning.whole(Size(*s)) for s in ((64, 64), (96, 64))}


def test_prompts_take_part_in_the_plan_beside_images(prompts: Path, images: Path) -> None:
    concepts = [
        (Concept(kind="prompts", repeats=2.0), prompts),
        (Concept(kind="regularization"), images),
    ]
    dataset = build_dataset(concepts, "training", RULES)
    assert [c.num_examples for c in dataset.concepts] == [3, 5]
    repeats = concept_repeats_of(dataset.concepts, run_seed=0)
    assert [float(r.exact_repeats * r.num_examples) for r in repeats] == [6, 6]  # as many as prompts
    plans = EpochPlans(dataset, batch_size=2, accumulation_steps=1, run_seed=0)
    used = [s.example for group in plans.accumulation_groups(0) for batch in group for s in batch]
    assert sorted(n for n in used if n < 3) == [0, 0, 1, 1, 2, 2]


def test_all_caption_operations_apply(tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text("a {red|blue|green} ball\n", encoding="utf-8")
    changes = CaptionChanges(trigger_word="zog", wildcards=True)
    dataset = build(Concept(kind="prompts", text=changes, text_variations=20), file)
    found = set(dataset.texts(dataset.examples[0], run_seed=1))
    assert found == {f"zog, a {colour} ball" for colour in ("red", "blue", "green")}


def test_the_plan_as_csv_has_empty_columns_for_the_image(prompts: Path, images: Path) -> None:
    dataset = build_dataset([(Concept(kind="prompts", name="p"), prompts), (Concept(), images)], "training", RULES)
    plans = EpochPlans(dataset, batch_size=2, accumulation_steps=1, run_seed=0)
    rows = plan_rows(dataset, plans, ImageVersions(dataset, 0, is_cached=True), epochs=1)
    table = as_csv(rows).splitlines()
    assert table[1] == f"p,{prompts / 'line 2'},,64x64,,,,,,,,0,1.0,1,"
    assert len(table) == 1 + 3 + 5
    assert any("3 prompts" in line and "cropped" not in line for line in describe_buckets(rows))
    assert describe_images(rows)[0] == f"  {prompts / 'line 2'}: 64x64, 1 sample per epoch"


def test_a_changed_file_of_prompts_is_found(prompts: Path) -> None:
    settings = DatasetSettings((Concept(kind="prompts", path=str(prompts)),), RULES, 1, 1, 0)
    datasets = build_datasets(settings)
    assert len(datasets.training.examples) == 3
    assert datasets.is_current()
    prompts.write_text(f"{LINES}another\n", encoding="utf-8")
    assert not datasets.is_current()


def test_captions_beside_images_are_prompts_too(tmp_path: Path) -> None:
    draw_folder(tmp_path, sizes=[(64, 64)] * 2)
    (tmp_path / "000.txt").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "001.txt").write_text("three\n", encoding="utf-8")
    assert texts(tmp_path) == [("one",), ("two",), ("three",)]
