"""Preference pairs as data: folders matched by name, metadata, Pick-a-Pic's columns, and one geometry for both."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.data.buckets import BucketRules, ResizeCrop, Size
from modules.data.captions.sources import CaptionOrigin
from modules.data.concept import Concept
from modules.data.dataset import build_dataset
from modules.data.image_settings import ImageChanges
from modules.data.images import open_image
from modules.data.pairs import fingerprint_of_source, scan_pairs
from modules.data.samples import SampleIndex
from modules.data.scan import Scan
from modules.data.transforms.apply import load_pixels
from modules.data.transforms.geometry import Geometry, fit_like
from modules.data.versions import ImageVersions, RejectedVersions
from tests.builders.images import draw_image

METADATA = CaptionOrigin(source="metadata")
RULES = BucketRules((64,), 16, 4.0, is_bucketing=True)


def draw(file: Path, index: int = 0, size: tuple[int, int] = (64, 64)) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    draw_image(*size, index).save(file)
    return file


def names(scan: Scan, root: Path) -> list[tuple[str, str]]:
    pairs = [(i.path, i.rejected.path) for i in scan.images if i.rejected is not None]
    return [(c.relative_to(root).as_posix(), r.relative_to(root).as_posix()) for c, r in pairs]


def reasons(scan: Scan) -> list[str]:
    return [f"{s.path.name}: {s.reason}" for s in scan.skipped]


def captions(scan: Scan) -> list[tuple[str, ...]]:
    return [i.captions for i in scan.images]


# ---- folders


def test_images_of_the_same_name_are_a_pair(tmp_path: Path) -> None:
    for index, name in enumerate(("a.png", "b.png", "deep/er/c.png", "deep/a.png", "two.dots.png")):
        draw(tmp_path / "chosen" / name, index)
        draw(tmp_path / "rejected" / name.replace("b.png", "b.webp").replace("dots.png", "dots.jpg"), index + 1)
    (tmp_path / "chosen" / "a.txt").write_text("a cat")
    (tmp_path / "rejected" / "a.txt").write_text("not read")
    found = scan_pairs(tmp_path, captions=CaptionOrigin())
    assert names(found, tmp_path) == [
        ("chosen/a.png", "rejected/a.png"),
        ("chosen/b.png", "rejected/b.webp"),
        ("chosen/deep/a.png", "rejected/deep/a.png"),
        ("chosen/deep/er/c.png", "rejected/deep/er/c.png"),
        ("chosen/two.dots.png", "rejected/two.dots.jpg"),
    ]
    assert captions(found) == [("a cat",), (), (), (), ()]
    assert not found.skipped


def test_the_same_name_comes_before_another_extension(tmp_path: Path) -> None:
    for name in ("chosen/a.jpg", "chosen/a.png", "rejected/a.png", "rejected/a.webp"):
        draw(tmp_path / name)
    found = scan_pairs(tmp_path, captions=CaptionOrigin())
    assert names(found, tmp_path) == [("chosen/a.jpg", "rejected/a.webp"), ("chosen/a.png", "rejected/a.png")]


def test_images_without_a_partner_are_named(tmp_path: Path) -> None:
    for name in ("chosen/a.png", "chosen/only.png", "rejected/a.png", "rejected/other.png"):
        draw(tmp_path / name)
    found = scan_pairs(tmp_path, captions=CaptionOrigin())
    assert len(found.images) == 1
    assert reasons(found) == [
        "only.png: no image of this name in rejected/",
        "other.png: no image of this name in chosen/",
    ]


def test_a_broken_image_leaves_its_pair_out(tmp_path: Path) -> None:
    for name in ("chosen/a.png", "chosen/b.png", "rejected/a.png", "rejected/b.png"):
        draw(tmp_path / name)
    (tmp_path / "rejected" / "b.png").write_bytes(b"")
    found = scan_pairs(tmp_path, captions=CaptionOrigin())
    assert names(found, tmp_path) == [("chosen/a.png", "rejected/a.png")]
    assert reasons(found) == ["b.png: an empty file; its pair is left out"]


@pytest.mark.parametrize(("there", "missing"), [("chosen", "rejected"), ("rejected", "chosen")])
def test_one_folder_alone_is_said(tmp_path: Path, there: str, missing: str) -> None:
    draw(tmp_path / there / "a.png")
    found = scan_pairs(tmp_path, captions=CaptionOrigin())
    assert (found.images, reasons(found)) == ((), [f"{there}: there is no folder {missing} next to it"])


def test_a_folder_without_pairs_is_empty(tmp_path: Path) -> None:
    draw(tmp_path / "a.png")
    assert scan_pairs(tmp_path, captions=CaptionOrigin()) == Scan((), ())


# ---- metadata


def write_table(file: Path, rows: list[dict[str, Any]]) -> Path:
    match file.suffix:
        case ".parquet":
            import pyarrow
            from pyarrow import parquet

            parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=2)
        case ".arrow":
            import pyarrow

            table = pyarrow.Table.from_pylist(rows)
            with pyarrow.ipc.new_stream(str(file), table.schema) as stream:
                stream.write_table(table, max_chunksize=2)
        case ".csv":
            with file.open("w", newline="") as handle:
                writer = csv.DictWriter(handle, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
        case _:
            file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet", ".arrow"])
def test_metadata_names_both_images(tmp_path: Path, suffix: str) -> None:
    for index in range(3):
        draw(tmp_path / "images" / f"{index}.png", index)
    rows = [
        {"chosen": "images/0.png", "rejected": "images/1.png", "prompt": "a disc"},
        {"chosen": "./images/2.png", "rejected": "images\\1.png", "prompt": "another"},
        {"chosen": "images/2.png", "rejected": "images/2.png", "prompt": "the same"},
        {"chosen": "", "rejected": "images/2.png", "prompt": "incomplete"},
        {"chosen": "images/2.png", "rejected": "images/9.png", "prompt": "not there"},
    ]
    write_table(tmp_path / f"metadata{suffix}", rows)
    found = scan_pairs(tmp_path, captions=METADATA)
    assert names(found, tmp_path) == [("images/0.png", "images/1.png"), ("images/2.png", "images/1.png")]
    assert captions(found) == [("a disc",), ("another",)]
    assert reasons(found) == [
        "9.png: cannot be read (No such file or directory); its pair is left out",
        f"metadata{suffix}: 1 pair is left out: two images are not named",
        f"metadata{suffix}: 1 pair is left out: the chosen and the rejected image are the same file",
    ]
    assert names(scan_pairs(tmp_path / f"metadata{suffix}", captions=METADATA), tmp_path) == names(found, tmp_path)


def test_a_caption_of_the_concept_comes_before_that_of_the_row(tmp_path: Path) -> None:
    draw(tmp_path / "0.png")
    draw(tmp_path / "1.png", 1)
    file = write_table(tmp_path / "metadata.jsonl", [{"chosen": "0.png", "rejected": "1.png", "caption": "of the row"}])
    fixed = CaptionOrigin(source="fixed_text", fixed_text="of the concept")
    assert captions(scan_pairs(file, captions=fixed)) == [("of the concept",)]
    assert captions(scan_pairs(file, captions=CaptionOrigin())) == [("of the row",)]


def test_unknown_columns_are_named(tmp_path: Path) -> None:
    file = write_table(tmp_path / "metadata.jsonl", [{"left": "0.png", "right": "1.png"}])
    [reason] = reasons(scan_pairs(file, captions=METADATA))
    assert "has neither the columns chosen and rejected nor Pick-a-Pic's" in reason
    assert "'left', 'right'" in reason


def pick_a_pic(tmp_path: Path) -> list[dict[str, Any]]:
    """Rows as in Pick-a-Pic: the first image preferred, the second one, a tie, no label, and equal images."""
    images = [draw(tmp_path / "source" / f"{i}.jpg", i, (64 + 16 * i, 64)).read_bytes() for i in range(4)]
    labels = [(1.0, 0.0, True), (0.0, 1.0, True), (0.5, 0.5, True), (None, None, False), (1.0, 0.0, True)]
    return [
        {
            "are_different": number != 4,
            "caption": f"prompt {number}",
            "has_label": has_label,
            "jpg_0": images[number % 4],
            "jpg_1": images[(number + 1) % 4],
            "label_0": first,
            "label_1": second,
        }
        for number, (first, second, has_label) in enumerate(labels)
    ]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_pick_a_pic_is_read_with_its_ties_counted(tmp_path: Path, suffix: str) -> None:
    rows = pick_a_pic(tmp_path)
    data = tmp_path / "set" / "data"
    data.mkdir(parents=True)
    file = write_table(data / f"train-00000-of-00001{suffix}", rows)
    for source in (tmp_path / "set", file):
        found = scan_pairs(source, captions=CaptionOrigin())
        widths = [(i.width_px, i.rejected.width_px) for i in found.images if i.rejected is not None]
        assert widths == [(64, 80), (96, 80)]  # the second row prefers its second image
        assert captions(found) == [("prompt 0",), ("prompt 1",)]
        assert reasons(found) == [
            f"{file.name}: 2 pairs are left out: no image is preferred (ties)",
            f"{file.name}: 1 pair is left out: no label",
        ]
        for image in found.images:
            assert image.rejected is not None
            for path, width in ((image.path, image.width_px), (image.rejected.path, image.rejected.width_px)):
                with open_image(path) as raw:
                    assert raw.width == width


def test_a_saved_data_set_of_pairs_is_read_without_its_cached_files(tmp_path: Path) -> None:
    rows = pick_a_pic(tmp_path)
    train = tmp_path / "saved" / "train"
    train.mkdir(parents=True)
    write_table(train / "data-00000-of-00001.arrow", rows)
    write_table(train / "cache-0123456789abcdef.arrow", rows)
    (train / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    found = scan_pairs(train, captions=CaptionOrigin())
    assert captions(found) == [("prompt 0",), ("prompt 1",)]
    assert "cache-0123456789abcdef.arrow: an Arrow file that is not part of the data set" in reasons(found)[0]
    whole = scan_pairs(tmp_path / "saved", captions=CaptionOrigin())
    assert not whole.images
    assert reasons(whole) == ["dataset_dict.json: a data set with the splits train, test: choose the folder of one"]


def test_labels_may_be_texts_and_only_one(tmp_path: Path) -> None:
    for index in range(2):
        draw(tmp_path / f"{index}.png", index)
    rows = [{"image_0": "0.png", "image_1": "1.png", "label_0": label} for label in ("1", "0.0", "0.5", "x", "")]
    found = scan_pairs(write_table(tmp_path / "metadata.csv", rows), captions=CaptionOrigin())
    assert names(found, tmp_path) == [("0.png", "1.png"), ("1.png", "0.png")]
    assert len(found.skipped) == 2


def test_the_fingerprint_covers_both_images(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "set", tmp_path / "elsewhere"
    draw(folder / "chosen" / "sub" / "a.png")
    draw(folder / "rejected" / "sub" / "a.png", 1)
    outside = draw(elsewhere / "b.png", 2)
    table = tmp_path / "table"
    table.mkdir()
    write_table(table / "metadata.jsonl", [{"chosen": str(outside), "rejected": str(folder / "chosen/sub/a.png")}])

    def fingerprints() -> list[str]:
        sources = (folder, table, table / "metadata.jsonl")
        return [fingerprint_of_source(s, include_subfolders=False, holds_pairs=True) for s in sources]

    before = fingerprints()
    assert fingerprints() == before
    draw(folder / "rejected" / "sub" / "a.png", 3, (80, 64))
    changed = fingerprints()
    assert (changed[0] != before[0], changed[1:] == before[1:]) == (True, True)
    draw(outside, 4, (96, 64))
    assert [new != old for new, old in zip(fingerprints(), changed, strict=True)] == [False, True, True]


# ---- one geometry for both


sides = st.integers(40, 200)


@given(width=sides, height=sides, other_width=sides, other_height=sides, left=st.integers(0, 20), flip=st.booleans())
def test_a_fitted_image_covers_the_same_crop(
    width: int, height: int, other_width: int, other_height: int, left: int, flip: bool
) -> None:
    size, other = Size(width, height), Size(other_width, other_height)
    fit = ResizeCrop(Size(64, 64), Size(64 + left, 64 + left), left, left // 2)
    fitted = fit_like(Geometry(fit, is_flipped=flip), size, other)
    crop = fitted.resize_crop
    assert (crop.bucket, fitted.is_flipped, fitted.degrees) == (fit.bucket, flip, 0.0)
    assert 0 <= crop.crop_left_px <= crop.scaled.width_px - 64
    assert 0 <= crop.crop_top_px <= crop.scaled.height_px - 64
    if other == size:
        assert crop == fit


CHANGES = ImageChanges(
    flip="random", crop_jitter=True, rotate="random", rotate_max_degrees=20, brightness="random", brightness_max=0.5
)


@pytest.mark.parametrize("changes", [ImageChanges(), CHANGES], ids=["plain", "augmented"])
@pytest.mark.parametrize("is_cached", [True, False])
def test_both_images_get_the_same_recipe(tmp_path: Path, changes: ImageChanges, is_cached: bool) -> None:
    """A copy of the chosen image is trained bit for bit alike, in every version; one of twice its size nearly so."""
    for index in range(4):
        draw(tmp_path / "chosen" / f"{index}.png", index, (150, 90))
        (tmp_path / "rejected").mkdir(exist_ok=True)
        shutil.copy(tmp_path / "chosen" / f"{index}.png", tmp_path / "rejected" / f"{index}.png")
    concept = Concept(kind="pairs", image=changes, image_variations=3)
    dataset = build_dataset([(concept, tmp_path)], "training", RULES)
    versions = ImageVersions(dataset, 7, is_cached=is_cached)
    rejected = RejectedVersions(versions)
    assert dataset.has_pairs
    seen = []
    for chosen in [versions.of(SampleIndex(e, repeat, 0, 1)) for e in range(4) for repeat in range(2)]:
        partner = rejected.of(chosen)
        assert partner == chosen  # the recipe and the size conditioning, too
        seen.append(load_pixels(dataset.examples[chosen.example].image.path, chosen.recipe))
        other = load_pixels(rejected.dataset.examples[chosen.example].image.path, partner.recipe)
        assert (seen[-1] == other).all()
    assert len(list(rejected.all_versions())) == len(list(versions.all_versions()))


def test_a_rejected_image_of_another_size_shows_the_same_part(tmp_path: Path) -> None:
    image = draw_image(120, 80, 0)
    for side, scale in (("chosen", 1), ("rejected", 2)):
        (tmp_path / side).mkdir()
        image.resize((120 * scale, 80 * scale)).save(tmp_path / side / "a.png")
    changes = ImageChanges(flip="always", crop_jitter=True)
    dataset = build_dataset([(Concept(kind="pairs", image=changes), tmp_path)], "training", RULES)
    [chosen] = ImageVersions(dataset, 3, is_cached=True).all_versions()
    [rejected] = RejectedVersions(ImageVersions(dataset, 3, is_cached=True)).all_versions()
    assert rejected.size_conditioning == chosen.size_conditioning
    assert rejected.recipe.geometry.crop_box(Size(240, 160)) == pytest.approx(
        [2 * side for side in chosen.recipe.geometry.crop_box(Size(120, 80))], abs=1.0
    )


def test_a_rejected_image_that_is_too_small_leaves_its_pair_out(tmp_path: Path) -> None:
    draw(tmp_path / "chosen" / "a.png")
    draw(tmp_path / "rejected" / "a.png", 1, (32, 32))
    rules = BucketRules((64,), 16, 4.0, is_bucketing=True, min_side_px=48)
    dataset = build_dataset([(Concept(kind="pairs"), tmp_path)], "training", rules)
    assert not dataset.examples
    assert dataset.skipped[0].reason == "smaller than the minimum of 48 px (32x32)"
