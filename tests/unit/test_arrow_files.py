"""Folders that the package `datasets` saved (`save_to_disk`), and other Arrow files; written with pyarrow."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from modules.data.archives import open_file, status_of
from modules.data.captions.sources import CaptionOrigin
from modules.data.images import open_image
from modules.data.scan import Scan, fingerprint_of_folder, scan_folder
from modules.data.tables import table_facts
from tests.builders.images import draw_image
from tests.builders.shards import image_bytes

Writer = Callable[[Any, pyarrow.Schema], Any]
FEATURES = {"preview": {"_type": "Value"}, "image": {"_type": "Image"}, "text": {"_type": "Value", "dtype": "string"}}


def table(numbers: Sequence[int], *, features: dict[str, Any] | None = None) -> pyarrow.Table:
    """Rows as `datasets` stores them: a preview that is no image to train, the image, and its text."""
    rows = [
        {
            "preview": {"bytes": b"no image", "path": None},
            "image": {"bytes": image_bytes(32, 24, n), "path": f"{n}.png"},
            "text": f"number {n}",
        }
        for n in numbers
    ]
    made = pyarrow.Table.from_pylist(rows)
    marks = {"huggingface": json.dumps({"info": {"features": FEATURES if features is None else features}})}
    return made.replace_schema_metadata(marks)


def write(file: Path, rows: pyarrow.Table, *, new: Writer = pyarrow.ipc.new_stream, per_batch: int = 2) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with new(str(file), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=per_batch)
    return file


def save_to_disk(folder: Path, *, num_images: int = 5, num_files: int = 2) -> Path:
    """Write the files of `Dataset.save_to_disk`, with a file that `Dataset.map` cached beside them."""
    names = [f"data-{i:05}-of-{num_files:05}.arrow" for i in range(num_files)]
    for index, name in enumerate(names):
        write(folder / name, table(range(index, num_images, num_files)))
    write(folder / "cache-0123456789abcdef.arrow", table([90, 91]))
    state = {"_data_files": [{"filename": n} for n in names], "_fingerprint": "0", "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    return folder


def scan(source: Path, *, subfolders: bool = False, captions: CaptionOrigin | None = None) -> Scan:
    return scan_folder(source, include_subfolders=subfolders, captions=captions or CaptionOrigin())


def reasons(result: Scan) -> dict[str, str]:
    return {s.path.name: s.reason for s in result.skipped}


def test_a_saved_data_set_is_a_concept(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "saved")
    result = scan(folder)
    numbers = [0, 2, 4, 1, 3]
    assert [p.captions for p in result.images] == [(f"number {n}",) for n in numbers]
    assert {(p.width_px, p.height_px) for p in result.images} == {(32, 24)}
    for image, number in zip(result.images, numbers, strict=True):
        with open_image(image.path) as found:
            assert np.array_equal(np.asarray(found), np.asarray(draw_image(32, 24, number)))
    assert reasons(result) == {
        "cache-0123456789abcdef.arrow": "an Arrow file that is not part of the data set: state.json does not name it"
    }


def test_any_row_is_read_without_those_before_it(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "saved", num_images=9, num_files=1)
    images = [p.path for p in scan(folder).images]
    for number in (7, 0, 8, 3, 7, 1):
        with open_file(images[number]) as file:
            assert file.read() == image_bytes(32, 24, number)
    [data] = folder.glob("data-*.arrow")
    assert status_of(images[3]).size_bytes == data.stat().st_size


def test_other_columns_can_be_the_captions(tmp_path: Path) -> None:
    file = write(tmp_path / "a.arrow", table([1]).append_column("title", pyarrow.array(["a title"])))
    result = scan(file, captions=CaptionOrigin("metadata", columns=("title", "text")))
    assert result.images[0].captions == ("a title", "number 1")
    unknown = scan(file, captions=CaptionOrigin("metadata", columns=("txt",)))
    assert reasons(unknown) == {"a.arrow": "has no column 'txt'; its columns are 'preview', 'text', 'title'"}


def test_the_splits_of_a_data_set_are_named(tmp_path: Path) -> None:
    for split in ("train", "test"):
        save_to_disk(tmp_path / split, num_images=2)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    result = scan(tmp_path)
    assert not result.images
    assert "the splits train, test: choose the folder of one" in reasons(result)["dataset_dict.json"]
    assert len(scan(tmp_path, subfolders=True).images) == 4
    assert len(scan(tmp_path / "train").images) == 2


def test_a_missing_file_of_a_data_set_is_named(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "saved")
    (folder / "data-00001-of-00002.arrow").unlink()
    result = scan(folder)
    assert len(result.images) == 3
    assert "data-00001-of-00002.arrow" in reasons(result)["state.json"]


@pytest.mark.parametrize(
    "state", ["", "[]", '{"_data_files": 3}', '{"_data_files": [3, {"filename": []}]}', "[" * 9999]
)
def test_without_a_usable_state_all_files_are_used(tmp_path: Path, state: str) -> None:
    folder = save_to_disk(tmp_path / "saved")
    (folder / "state.json").write_text(state)
    assert len(scan(folder).images) == 7


def test_a_changed_state_is_a_change_of_the_folder(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "saved")
    before = fingerprint_of_folder(folder, include_subfolders=False)
    (folder / "state.json").write_text("{}")
    assert fingerprint_of_folder(folder, include_subfolders=False) != before


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("new", [pyarrow.ipc.new_stream, pyarrow.ipc.new_file])
def test_streams_and_files_are_read(tmp_path: Path, new: Writer, compression: str | None) -> None:
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    file = write(tmp_path / "a.arrow", table(range(5)), new=lambda sink, schema: new(sink, schema, options=options))
    result = scan(file)
    assert [p.captions[0] for p in result.images] == [f"number {n}" for n in range(5)]
    with open_file(result.images[3].path) as content:
        assert content.read() == image_bytes(32, 24, 3)


@pytest.mark.parametrize("marks", [{}, {"image": 3}, {"gone": {"_type": "Image"}}])
def test_without_marks_the_first_column_with_bytes_has_the_images(tmp_path: Path, marks: dict[str, Any]) -> None:
    assert table_facts(write(tmp_path / "a.arrow", table([1], features=marks))).image_column == "preview"
    plain = table([1]).replace_schema_metadata({b"huggingface": b"[["})
    assert table_facts(write(tmp_path / "b.arrow", plain)).image_column == "preview"
    assert table_facts(write(tmp_path / "c.arrow", table([1]))).image_column == "image"


def test_offsets_outside_of_the_file_are_found_before_they_are_followed(tmp_path: Path) -> None:
    """They would be read as addresses in memory."""
    image = image_bytes(32, 24, 1)
    whole = write(tmp_path / "a.arrow", pyarrow.table({"image": pyarrow.array([image], pyarrow.binary())})).read_bytes()
    offsets = (0).to_bytes(4, "little") + len(image).to_bytes(4, "little")
    place = whole.rindex(offsets) + 4
    (tmp_path / "a.arrow").write_bytes(whole[:place] + b"\xff\xff\xff\x7f" + whole[place + 4 :])
    assert reasons(scan(tmp_path))["00000000.row"].startswith("cannot be read (not a readable Arrow file")


def test_a_row_whose_image_is_a_file_elsewhere_is_named(tmp_path: Path) -> None:
    """The path in a row is the one of another machine: nothing outside of the file is read."""
    secret = tmp_path / "other.png"
    draw_image(8, 8, 0).save(secret)
    rows = pyarrow.Table.from_pylist([{"image": {"bytes": None, "path": str(secret)}}]).cast(
        pyarrow.schema([("image", pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())]))])
    )
    result = scan(write(tmp_path / "data" / "a.arrow", rows))
    assert not result.images
    assert reasons(result) == {"00000000.row": "cannot be read (row 0 of a.arrow has no image)"}


def test_a_file_without_images_and_damaged_ones_are_named(tmp_path: Path) -> None:
    write(tmp_path / "text.arrow", pyarrow.table({"text": ["x"]}))
    whole = write(tmp_path / "whole.arrow", table(range(4))).read_bytes()
    (tmp_path / "cut.arrow").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.arrow").write_bytes(b"")
    (tmp_path / "magic.arrow").write_bytes(b"ARROW1")
    found = scan(tmp_path)
    assert {p.path.parent.name for p in found.images} == {"whole.arrow"}
    named = reasons(found)
    assert named["text.arrow"] == "has no column of images; its columns are text"
    for name in ("cut.arrow", "magic.arrow", "empty.arrow"):
        assert named[name].startswith("not a readable Arrow file"), named


def test_without_its_package_an_arrow_file_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_to_disk(tmp_path / "saved")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = scan(tmp_path / "saved")
    assert (
        "needs the package pyarrow (python -m trainer install pyarrow)" in reasons(result)["data-00000-of-00002.arrow"]
    )
