"""Captions in metadata files: of the Hugging Face hub, of kohya, and JSON files of single images; and their faults."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.data.captions.sources import CaptionOrigin
from modules.data.metadata import MetadataCaptions, read_metadata
from modules.data.scan import Scan, fingerprint_of_folder, scan_folder
from modules.data.tables import row_name
from tests.builders.images import draw_image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png", "deep/c.png"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        draw_image(8, 8, 0).save(tmp_path / "set" / name)
    return tmp_path / "set"


def scan(folder: Path, file: Path | None = None, *columns: str) -> Scan:
    origin = CaptionOrigin("metadata", file, columns=columns)
    return scan_folder(folder, include_subfolders=True, captions=origin)


def captions(result: Scan) -> dict[str, tuple[str, ...]]:
    return {p.path.name: p.captions for p in result.images}


def reasons(result: Scan) -> list[tuple[str, str]]:
    return [(s.path.name, s.reason) for s in result.skipped]


def lines(*rows: dict[str, Any]) -> str:
    return "\n".join(map(json.dumps, rows)) + "\n"


ROWS = ({"file_name": "a.png", "text": "a cat"}, {"file_name": "b.png", "text": "a dog"},
        {"file_name": "deep/c.png", "text": "a cow"})  # fmt: skip
EXPECTED = {"a.png": ("a cat",), "b.png": ("a dog",), "c.png": ("a cow",)}


# -- kinds of files


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metadata.jsonl", lines(*ROWS)),
        ("metadata.jsonl", "\ufeff" + lines(*ROWS).replace("\n", "\r\n\r\n")),
        ("metadata.csv", 'file_name,text\na.png,a cat\nb.png,"a dog"\ndeep/c.png,a cow\n'),
        ("metadata.csv", "license,file_name,text\nx,./a.png,a cat\nx,b.png,a dog\nx,deep\\c.png,a cow\n"),
    ],
)
def test_metadata_in_the_folder(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content, encoding="utf-8")
    result = scan(folder)
    assert captions(result) == EXPECTED
    assert reasons(result) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("all.tsv", "file_name\ttext\na.png\ta cat\nb.png\ta dog\ndeep/c.png\ta cow\n"),
        ("all.json", json.dumps(list(ROWS))),
        ("all.json", json.dumps({r["file_name"]: {"caption": r["text"]} for r in ROWS})),
        ("all.json", json.dumps({r["file_name"].removesuffix(".png"): {"caption": r["text"]} for r in ROWS})),
        ("all.json", json.dumps({r["file_name"]: r["text"] for r in ROWS})),
        ("all.ndjson", lines(*ROWS)),
    ],
)
def test_a_metadata_file_elsewhere(folder: Path, tmp_path: Path, name: str, content: str) -> None:
    """Its images are named relative to itself, or to the folder."""
    (tmp_path / name).write_text(content)
    result = scan(folder, tmp_path / name)
    assert captions(result) == EXPECTED
    assert reasons(result) == []


def test_kohya_s_metadata_with_whole_paths_and_tags(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "meta.json"
    entries = {
        str(folder / "a.png"): {"caption": "a cat", "tags": "fur, paws", "train_resolution": [512, 512]},
        str(folder / "b"): {"tags": "dog"},
        str(folder / "deep" / "c"): {"caption": "a cow"},
    }
    file.write_text(json.dumps(entries))
    assert captions(scan(folder, file)) == {"a.png": ("a cat, fur, paws",), "b.png": ("dog",), "c.png": ("a cow",)}


def test_each_folder_may_have_its_own(folder: Path) -> None:
    (folder / "metadata.jsonl").write_text(lines(*ROWS))
    (folder / "deep" / "metadata.csv").write_text("file_name,text\nc.png,nearer\n")
    assert captions(scan(folder)) == {**EXPECTED, "c.png": ("nearer",)}


def test_a_single_image_uses_the_metadata_beside_it_and_no_other(folder: Path) -> None:
    (folder / "metadata.jsonl").write_text(lines(*ROWS))
    result = scan(folder / "a.png")
    assert captions(result) == {"a.png": ("a cat",)}
    assert reasons(result) == []
    assert captions(scan(folder / "deep" / "c.png")) == {"c.png": ()}


def test_an_image_of_the_same_name_in_another_folder_is_another_image(folder: Path) -> None:
    (folder / "metadata.jsonl").write_text(lines({"file_name": "c.png", "text": "not that one"}))
    result = scan(folder)
    assert captions(result)["c.png"] == ()
    assert ("metadata.jsonl", "names images that are not there: 'c.png'") in reasons(result)


def test_a_json_file_of_each_image(folder: Path) -> None:
    (folder / "a.json").write_text(json.dumps({"caption": "a cat", "url": "x"}))
    (folder / "b.json").write_text("no json")
    assert captions(scan(folder)) == {"a.png": ("a cat",), "b.png": (), "c.png": ()}


# -- columns


def test_columns_are_chosen(folder: Path) -> None:
    rows = [{"file_name": "a.png", "text": "long", "short": "s", "tags": ["one", "two"], "n": 5, "none": None}]
    (folder / "metadata.jsonl").write_text(lines(*rows))
    assert captions(scan(folder))["a.png"] == ("long",)
    assert captions(scan(folder, None, "short"))["a.png"] == ("s",)
    assert captions(scan(folder, None, "tags", "short", "n", "none"))["a.png"] == ("one", "two", "s", "5")


def test_line_breaks_in_a_text_do_not_split_it(folder: Path) -> None:
    (folder / "metadata.csv").write_text('file_name,text\na.png," a\ncat "\nb.png,\n')
    assert captions(scan(folder)) == {"a.png": ("a cat",), "b.png": (), "c.png": ()}


def test_a_change_of_the_metadata_changes_the_fingerprint(folder: Path) -> None:
    (folder / "metadata.jsonl").write_text(lines(*ROWS))
    before = fingerprint_of_folder(folder, include_subfolders=True)
    (folder / "metadata.jsonl").write_text(lines(*ROWS[:2]))
    assert fingerprint_of_folder(folder, include_subfolders=True) != before


# -- faults, each named with its file


@pytest.mark.parametrize(
    ("name", "content", "columns", "expected"),
    [
        ("metadata.jsonl", lines(*ROWS) + "{broken\n[1]\n", (), "lines 4, 5: not a JSON object"),
        ("metadata.jsonl", lines(*ROWS), ("txt",), "has no column 'txt'; its columns are 'file_name', 'text'"),
        ("metadata.jsonl", lines({"file_name": "a.png", "x": 1}), (), "has no column text or caption; its columns"),
        ("metadata.jsonl", lines({"name": "a.png", "text": "x"}), (), "has no column file_name with the names"),
        ("metadata.csv", "file_name,text\na.png," + "x" * 200_000, (), "not a readable table (field larger than"),
        ("metadata.jsonl", lines(*ROWS, {"file_name": "gone.png"}, {"file_name": "z.png"}), (),
         "names images that are not there: 'gone.png' and 1 more"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(folder: Path, name: str, content: str, columns: tuple[str, ...], expected: str) -> None:
    (folder / name).write_text(content)
    result = scan(folder, None, *columns)
    assert len(result.images) == 3
    [(file, reason)] = reasons(result)
    assert file == name
    assert reason.startswith(expected)


def test_a_chosen_file_that_is_not_there_or_no_json(folder: Path, tmp_path: Path) -> None:
    assert reasons(scan(folder, tmp_path / "gone.jsonl")) == [("gone.jsonl", "No such file or directory")]
    (tmp_path / "bad.json").write_text("{")
    [(_, reason)] = reasons(scan(folder, tmp_path / "bad.json"))
    assert reason.startswith("not valid JSON")
    (tmp_path / "bad.json").write_text("5")
    assert "neither a list nor an object" in reasons(scan(folder, tmp_path / "bad.json"))[0][1]


def test_only_the_texts_of_one_table_with_images_are_in_memory(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    for name in ("a", "b"):
        rows = [{"image": {"bytes": b"x", "path": None}, "text": f"{name} {number}"} for number in range(3)]
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    metadata = MetadataCaptions(tmp_path, file=None, columns=())
    for name in ("a", "b", "a"):  # also once more, after another one
        for number in range(3):
            assert metadata.texts_of(tmp_path / f"{name}.parquet" / row_name(number)) == (f"{name} {number}",)
        assert list(metadata._read) == [tmp_path / f"{name}.parquet"]


def test_a_parquet_file_without_its_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (folder / "metadata.parquet").write_bytes(b"PAR1")
    result = scan(folder)
    assert reasons(result) == [
        ("metadata.parquet", "a Parquet file, which needs the package pyarrow (python -m trainer install pyarrow)")
    ]


@given(content=st.binary(max_size=200), suffix=st.sampled_from([".jsonl", ".json", ".csv"]))
def test_no_file_raises(tmp_path_factory: pytest.TempPathFactory, content: bytes, suffix: str) -> None:
    file = tmp_path_factory.getbasetemp() / f"any{suffix}"
    file.write_bytes(content)
    read_metadata(file, ())
    read_metadata(file, ("text",))


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["file_name", "text", "a"]), inner),
    max_leaves=8,
)


@given(content=values)
def test_no_json_raises(tmp_path_factory: pytest.TempPathFactory, content: object) -> None:
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_text(json.dumps(content))
    metadata = read_metadata(file, ())
    assert all(isinstance(t, str) and t for column in metadata.columns for texts in column.values() for t in texts)


# -- Parquet


def test_parquet_metadata_and_images(folder: Path, tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(list(ROWS)), folder / "metadata.parquet")
    assert captions(scan(folder)) == EXPECTED
    rows = [
        {"image": {"bytes": (folder / n).read_bytes(), "path": n}, "text": t}
        for n, t in (("a.png", "a cat"), ("b.png", "a dog"), ("deep/c.png", "a cow"))
    ]
    rows.append({"image": {"bytes": None, "path": "d.png"}, "text": "nothing"})
    table = tmp_path / "hub" / "train.parquet"
    table.parent.mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(rows), table, row_group_size=2)
    result = scan_folder(table.parent, include_subfolders=False, captions=CaptionOrigin())
    assert [p.captions for p in result.images] == [("a cat",), ("a dog",), ("a cow",)]
    assert [(p.width_px, p.height_px) for p in result.images] == [(8, 8)] * 3
    assert reasons(result) == [("00000003.row", "cannot be read (row 3 of train.parquet has no image)")]
    unknown = CaptionOrigin("metadata", columns=("txt",))
    result = scan_folder(table, include_subfolders=False, captions=unknown)
    assert ("train.parquet", "has no column 'txt'; its columns are 'text'") in reasons(result)
    parquet.write_table(pyarrow.Table.from_pylist([{"text": "x"}]), table)
    result = scan_folder(table, include_subfolders=False, captions=CaptionOrigin())
    assert reasons(result) == [("train.parquet", "has no column of images; its columns are text")]
    table.write_bytes(b"PAR1 and no more")
    [(_, reason)] = reasons(scan_folder(table, include_subfolders=False, captions=CaptionOrigin()))
    assert reason.startswith("not a readable Parquet file")


def test_a_row_with_too_many_cells_is_reported(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("file_name,text\na.png,a cat, sitting on a mat\nb.png,a dog\n")
    found = read_metadata(tmp_path / "metadata.csv", ())
    assert found.cells_of("b.png") == (("a dog",),)
    assert any(p.reason.startswith("line 2: more cells than columns") for p in found.problems)


def test_lines_of_json_may_contain_other_line_separators(tmp_path: Path) -> None:
    (tmp_path / "metadata.jsonl").write_bytes('{"file_name": "a.png", "text": "a\u2028b"}\n'.encode())
    found = read_metadata(tmp_path / "metadata.jsonl", ())
    assert found.columns == ({"a.png": ("a b",)},)
    assert not found.problems
