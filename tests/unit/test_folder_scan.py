"""Scans of folders open new and changed files only, and find what a scan that opens all of them finds."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from modules.data import folder_scan
from modules.data.captions.sources import CaptionOrigin, read_captions
from modules.data.folder_files import list_files
from modules.data.images import open_image
from modules.data.listing import list_images
from modules.data.metadata import MetadataCaptions
from modules.data.scan import Scan, captions_of, image_index, inspect_image, scan_folder
from tests.builders.images import draw_folder, draw_image

NAMES = ("b.png", "a-b/1.png", "a/1.png", "a/b/1.png", "a.b/2.png", "a/b.png", "a/c/d/e.png", "é/1.png", "Z.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = draw_folder(tmp_path / "images", sizes=[(8, 8), (16, 8), (8, 16)])
    draw_folder(folder / "more", sizes=[(24, 8)] * 2)
    for path in sorted(folder.rglob("*.png")):
        path.with_suffix(".txt").write_text(f"first of {path.stem}\n\n second \n", encoding="utf-8")
    return folder


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that scans open."""
    names: list[str] = []

    def counting(function: Callable[[Path], object], path: Path) -> object:
        names.append(path.name)
        return function(path)

    for name in ("open_image", "_read_caption"):
        monkeypatch.setattr(folder_scan, name, partial(counting, getattr(folder_scan, name)))
    return names


def scanned(folder: Path, cache_dir: Path | None, *, captions: CaptionOrigin | None = None) -> Scan:
    """Scan a folder as a new start does, with the index of its cache folder."""
    index = image_index(cache_dir)
    scan = scan_folder(folder, include_subfolders=True, captions=captions or CaptionOrigin(), index=index)
    index.save()
    return scan


def test_only_new_and_changed_files_are_opened(folder: Path, tmp_path: Path, opened: list[str]) -> None:
    cache_dir = tmp_path / "cache"
    first = scanned(folder, cache_dir)
    assert sorted(opened) == sorted(p.name for p in folder.rglob("*.*"))
    opened.clear()
    assert scanned(folder, cache_dir) == first
    assert not opened
    draw_image(40, 8, 1).save(folder / "001.png")
    (folder / "more" / "000.txt").write_text("another", encoding="utf-8")
    (folder / "002.png").rename(folder / "003.png")
    (folder / "000.txt").unlink()
    again = scanned(folder, cache_dir)
    assert sorted(opened) == ["000.txt", "001.png", "003.png"]
    assert again == scanned(folder, None)
    assert [(i.path.relative_to(folder).as_posix(), i.width_px, i.captions) for i in again.images] == [
        ("000.png", 8, ()),
        ("001.png", 40, ("first of 001", "second")),
        ("003.png", 8, ()),
        ("more/000.png", 24, ("another",)),
        ("more/001.png", 24, ("first of 001", "second")),
    ]


def test_files_are_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    listed = [
        files.folder / name
        for files in list_files(tmp_path, include_subfolders=True, leave_out=pytest.fail)
        for name in files.names
    ]
    assert listed == sorted(listed)
    assert {p.relative_to(tmp_path).as_posix() for p in listed} == set(NAMES)


@pytest.mark.parametrize("source", ["text_file", "file_name", "one_file", "fixed_text", "metadata"])
def test_a_folder_is_scanned_like_its_images_one_by_one(folder: Path, source: str) -> None:
    (folder / "002.txt").unlink()
    (folder / "003.png").write_bytes(b"")
    (folder / "004.png").write_bytes(b"no image")
    draw_image(800, 8, 1).save(folder / "005.png")
    (folder / "001.txt").write_bytes("größer".encode("cp1252"))
    (folder / "more" / "000.txt").write_text(" \n", encoding="utf-8")
    (folder / "metadata.jsonl").write_text('{"file_name": "more/001.png", "text": "named"}\n', encoding="utf-8")
    shared = folder / "shared.txt"
    shared.write_text("one\ntwo", encoding="utf-8")
    origin = CaptionOrigin(source, shared if source == "one_file" else None, fixed_text="fixed")  # type: ignore[arg-type]
    metadata = MetadataCaptions(folder, file=None, columns=())
    one_by_one = [
        inspect_image(path, partial(captions_of, path, origin, metadata), None, within=folder)
        for path in list_images(folder, include_subfolders=True).images
    ]
    index = image_index(None)
    for _ in range(2):
        scan = scan_folder(folder, include_subfolders=True, captions=origin, index=index)
        assert len(scan.images) == 5
        assert {s.path.name for s in scan.skipped} == {"003.png", "004.png", "005.png"}
        found = {i.path: i for i in scan.images} | {s.path: s for s in scan.skipped}
        for other in one_by_one:
            mine = found[other.path]
            assert type(mine) is type(other)
            for name in ("width_px", "mtime_ns", "captions", "caption_fault", "caption_file", "reason"):
                assert getattr(mine, name, None) == getattr(other, name, None), (other.path, name)


def test_what_could_not_be_read_is_tried_again(folder: Path, opened: list[str]) -> None:
    index = image_index(None)
    (folder / "broken.png").write_bytes(b"no image")
    for _ in range(2):
        assert len(scan_folder(folder, include_subfolders=True, captions=CaptionOrigin(), index=index).images) == 5
    assert opened.count("broken.png") == 2


def test_two_runs_share_an_index(folder: Path, tmp_path: Path, opened: list[str]) -> None:
    one, two = image_index(tmp_path / "cache"), image_index(tmp_path / "cache")
    for index, part in ((one, folder), (two, folder / "more")):
        scan_folder(part, include_subfolders=False, captions=CaptionOrigin(), index=index)
    one.save()
    two.save()
    opened.clear()
    scanned(folder, tmp_path / "cache")
    assert not opened


@pytest.mark.parametrize("content", [b"not a database, but long enough" * 40, b"SQLite format 3\x00" + b"\xff" * 500])
def test_a_damaged_index_begins_anew(folder: Path, tmp_path: Path, opened: list[str], content: bytes) -> None:
    cache_dir = tmp_path / "cache"
    cache_dir.mkdir()
    (cache_dir / "images.sqlite").write_bytes(content)
    first = scanned(folder, cache_dir)
    opened.clear()
    assert scanned(folder, cache_dir) == first
    assert not opened


def test_without_room_for_what_was_read_a_scan_goes_on(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "000.txt").write_text("long " * 10_000, encoding="utf-8")
    index = image_index(tmp_path / "cache")
    index._database.execute("PRAGMA main.max_page_count = 1")
    first = scan_folder(folder, include_subfolders=True, captions=CaptionOrigin(), index=index)
    assert first == scanned(folder, None)
    assert "is full" in caplog.text
    index.save()
    assert scan_folder(folder, include_subfolders=True, captions=CaptionOrigin(), index=index) == first


def test_an_index_of_an_earlier_version_is_kept_and_filled(folder: Path, tmp_path: Path, opened: list[str]) -> None:
    (tmp_path / "cache").mkdir()
    with sqlite3.connect(tmp_path / "cache" / "images.sqlite") as database:
        database.execute("CREATE TABLE images (path TEXT PRIMARY KEY, bytes INTEGER, mtime_ns INTEGER, facts TEXT)")
        database.execute("INSERT INTO images VALUES ('/a.tar/a.png', 1, 2, '8 8 0')")
    database.close()
    scanned(folder, tmp_path / "cache")
    opened.clear()
    scanned(folder, tmp_path / "cache")
    assert not opened
    known = image_index(tmp_path / "cache").others.find(Path("/a.tar/a.png"), size_bytes=1, mtime_ns=2)
    assert known == "8 8 0"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are text")
def test_names_that_are_not_valid_text(folder: Path, tmp_path: Path, opened: list[str]) -> None:
    strange = folder / os.fsdecode(b"\xe9t\xe9.png")
    (folder / "000.png").rename(strange)
    first = scanned(folder, tmp_path / "cache")
    assert strange in [i.path for i in first.images]
    opened.clear()
    assert scanned(folder, tmp_path / "cache") == first
    assert not opened


def test_a_caption_that_is_a_link_out_of_the_folder_is_not_read(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret", encoding="utf-8")
    (folder / "000.txt").unlink()
    (folder / "000.txt").symlink_to(secret)
    index = image_index(None)
    for _ in range(2):
        scan = scan_folder(folder, include_subfolders=False, captions=CaptionOrigin(), index=index)
        assert scan.images[0].captions == ()
        assert scan.images[0].caption_fault == "link"
    assert read_captions(folder / "000.png", CaptionOrigin()).fault == "link"


def test_many_files_in_one_folder_are_listed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.data.folder_files._MAX_FILES", 3)
    folder = draw_folder(tmp_path / "images", sizes=[(8, 8)] * 5)
    for path in sorted(folder.glob("*.png")):
        path.with_suffix(".txt").write_text(path.stem, encoding="utf-8")
    index = image_index(None)
    for _ in range(2):  # a caption in another part than its image is found, too
        scan = scan_folder(folder, include_subfolders=False, captions=CaptionOrigin(), index=index)
        assert [i.captions for i in scan.images] == [(f"{n:03d}",) for n in range(5)]
    with open_image(scan.images[0].path) as image:
        assert image.size == (8, 8)


@pytest.mark.parametrize(("long_wait", "num_ahead"), [(-1, 16), (float("inf"), 1)], ids=["slow disk", "in memory"])
def test_many_folders_are_listed_at_once_where_listing_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_wait: float, num_ahead: int
) -> None:
    submitted: list[Path] = []

    class Pool(ThreadPoolExecutor):
        def submit(self, function: Any, /, *args: Any, **options: Any) -> Any:
            submitted.append(args[0])
            return super().submit(function, *args, **options)

    monkeypatch.setattr("modules.data.folder_files._LONG_WAIT", long_wait)
    monkeypatch.setattr("modules.data.folder_files.ThreadPoolExecutor", Pool)
    for number in range(20):
        (tmp_path / f"{number:02d}").mkdir()
        (tmp_path / f"{number:02d}" / "a.txt").touch()
    listed = list_files(tmp_path, include_subfolders=True, leave_out=lambda left_out: None)
    first = next(listed)
    assert submitted == [tmp_path, *(tmp_path / f"{number:02d}" for number in range(num_ahead))]
    assert [files.folder.name for files in (first, *listed)] == [f"{number:02d}" for number in range(20)]
