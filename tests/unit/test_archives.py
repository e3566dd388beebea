"""Sources that are not folders of images: single files, tar shards, Parquet files; and what is wrong with them."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modules.data import archive_files, archives, folder_scan, listing, tables
from modules.data import images as images_module
from modules.data import shard_index as module_of_shards
from modules.data.archives import open_file, read_bytes, status_of
from modules.data.cache.digests import DigestIndex
from modules.data.captions.sources import CaptionOrigin
from modules.data.companions import find_mask
from modules.data.images import BrokenImageError, open_image, upright
from modules.data.scan import Scan, fingerprint_of_folder, image_index, scan_folder
from modules.data.shard_index import ShardIndex, shard_index
from tests.builders.images import draw_folder, draw_image
from tests.builders.shards import draw_shard, image_bytes, write_shard

BESIDE = CaptionOrigin()
JSON = CaptionOrigin("metadata")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of images that a test may change."""
    return draw_folder(tmp_path / "images", sizes=[(64, 64)] * 3 + [(96, 64)] * 2)


def scan(source: Path, captions: CaptionOrigin = BESIDE, **options: Any) -> Scan:
    return scan_folder(source, include_subfolders=True, captions=captions, **options)


def names(result: Scan, folder: Path) -> list[str]:
    return [p.path.relative_to(folder).as_posix() for p in result.images]


def reasons(result: Scan) -> dict[str, str]:
    return {s.path.name: s.reason for s in result.skipped}


# -- single files


def test_a_single_image_with_its_caption(images: Path) -> None:
    result = scan(images / "001.png")
    assert [(p.path, p.captions) for p in result.images] == [(images / "001.png", ("picture number 1",))]


def test_a_single_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no image")
    assert reasons(scan(tmp_path / "notes.txt")) == {"notes.txt": "not a readable image"}


def test_a_single_image_changes_its_fingerprint_with_its_caption(images: Path) -> None:
    def fingerprint() -> str:
        return fingerprint_of_folder(images / "001.png", include_subfolders=False)

    before = fingerprint()
    (images / "002.txt").write_text("another image's")
    assert fingerprint() == before
    (images / "001.txt").write_text("changed")
    assert fingerprint() != before


# -- tar shards


def test_the_images_of_a_shard_with_their_captions(tmp_path: Path) -> None:
    shard = draw_shard(tmp_path / "a.tar", sizes=[(32, 24), (16, 48)])
    result = scan(shard)
    assert names(result, shard) == ["0000.png", "0001.png"]
    assert [(p.width_px, p.height_px) for p in result.images] == [(32, 24), (16, 48)]
    assert [p.captions for p in result.images] == [("picture number 0",), ("picture number 1",)]
    assert [p.captions for p in scan(shard, JSON).images] == [("row 0",), ("row 1",)]
    assert result.skipped == ()


def test_images_in_a_shard_are_those_that_went_in(tmp_path: Path) -> None:
    shard = draw_shard(tmp_path / "a.tar", sizes=[(32, 24), (16, 48), (8, 8)])

    def pixels(number: int) -> np.ndarray:
        with open_image(shard / f"{number:04d}.png") as image:
            return np.asarray(upright(image))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(pixels, [2, 0, 1, 0, 2]))
    expected = [np.asarray(draw_image(*size, i)) for i, size in enumerate([(32, 24), (16, 48), (8, 8)])]
    assert all(np.array_equal(f, expected[i]) for f, i in zip(found, [2, 0, 1, 0, 2], strict=True))


def test_a_file_in_a_shard_is_read_like_any_other(tmp_path: Path) -> None:
    content = bytes(range(256)) * 9
    shard = write_shard(tmp_path / "a.tar", {"first": b"x" * 1000, "deep/b.bin": content, "last": b"end"})
    with open_file(shard / "deep" / "b.bin") as file:
        assert file.read(10) == content[:10]
        assert file.seek(-5, io.SEEK_END) == len(content) - 5
        assert file.read() == content[-5:]
        assert file.read() == b""
        assert file.seek(100) == 100
        assert file.seek(3, io.SEEK_CUR) == 103
        assert file.read(4) == content[103:107]
    assert status_of(shard / "deep" / "b.bin").size_bytes == len(content)
    assert status_of(shard / "last").mtime_ns == shard.stat().st_mtime_ns
    digest = DigestIndex(tmp_path / "cache").digest(shard / "last", size_bytes=3, mtime_ns=1)
    (tmp_path / "same").write_bytes(b"end")
    assert DigestIndex(tmp_path / "cache").digest(tmp_path / "same", size_bytes=3, mtime_ns=1) == digest
    with pytest.raises(FileNotFoundError):
        read_bytes(shard / "not there", 1_000)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "gone.tar" / "a.png", 1_000)


def test_another_version_of_a_shard_is_indexed_anew(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "a.tar", {"a.txt": b"one"})
    assert read_bytes(shard / "a.txt", 1_000_000) == b"one"
    write_shard(shard, {"before.txt": b"more", "a.txt": b"two"})
    os.utime(shard, ns=(1, 1))
    assert read_bytes(shard / "a.txt", 1_000_000) == b"two"


def test_a_shard_is_indexed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = draw_shard(tmp_path / "a.tar", sizes=[(8, 8)] * 5)
    scan(shard)
    monkeypatch.setattr(tarfile, "open", None)
    assert len(scan(shard).images) == 5


def test_a_later_scan_reads_no_headers_of_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = draw_shard(tmp_path / "a.tar", sizes=[(8, 8)] * 5)
    index = image_index(tmp_path / "cache")
    first = scan(shard, index=index)
    index.save()
    monkeypatch.setattr(module_of_shards, "_known", {})  # as in another process
    monkeypatch.setattr(tarfile, "open", None)
    monkeypatch.setattr(folder_scan, "open_image", None)
    monkeypatch.setattr(folder_scan, "_read_caption", None)
    assert scan(shard, index=image_index(tmp_path / "cache")) == first


def test_the_members_of_a_shard_are_found_by_name(tmp_path: Path) -> None:
    names = ["b.txt", "a/b.png", "a.png", "ä.png", "a\udcff", "\U0001f600.txt", "a", "b"]
    content = {name: name.encode(errors="surrogatepass") for name in names}
    shard = tmp_path / "a.tar"
    with tarfile.open(shard, "w", encoding="utf-8", errors="surrogatepass") as tar:
        for name, text in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    index = shard_index(shard)
    assert len(index.members) == len(names)
    assert list(index.members) == sorted(index.members)
    for name in index.members:
        offset, size_bytes = index.members[name]
        assert shard.read_bytes()[offset : offset + size_bytes].decode(errors="surrogatepass")[0] == name[0]
    assert "c" not in index.members
    assert "" not in index.members
    again = ShardIndex.from_text(index.to_text())
    assert dict(again.members) == dict(index.members)


def test_images_in_folders_of_a_shard_come_in_the_order_of_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_files, "_AT_ONCE", 3)
    paths = [f"{folder}{number}" for folder in ("", "b/", "a/c/", "a/") for number in range(4)]
    members = {
        f"{p}.{kind}": image_bytes(8, 8, 0) if kind == "png" else p.encode() for p in paths for kind in ("txt", "png")
    }
    shard = write_shard(tmp_path / "a.tar", members)
    result = scan(shard)
    assert names(result, shard) == sorted(f"{path}.png" for path in paths)
    assert [image.captions for image in result.images] == [(path,) for path in sorted(paths)]
    assert result.images[0].file_name == "0.png"


@pytest.mark.parametrize("captions", [BESIDE, JSON])
def test_a_caption_may_have_the_name_of_its_sample(tmp_path: Path, captions: CaptionOrigin) -> None:
    """Of 0001.large.png the key is 0001, and the fields of the sample are large.png, txt and json."""
    caption = {"0001.txt": b"a disc", "0001.json": b'{"caption": "a disc"}'}
    shard = write_shard(tmp_path / "a.tar", {"0001.large.png": image_bytes(8, 8, 0), **caption})
    (image,) = scan(shard, captions).images
    assert (image.captions, image.caption_fault) == (("a disc",), "")
    assert image.caption_file in (None, shard / "0001.txt")
    of_image = {"0001.large.txt": b"its own", "0001.large.json": b'{"caption": "its own"}'}
    write_shard(shard, {"0001.large.png": image_bytes(8, 8, 0), **caption, **of_image})
    assert scan(shard, captions).images[0].captions == ("its own",)


def test_other_fields_of_a_sample_are_no_images_of_their_own(tmp_path: Path) -> None:
    image = image_bytes(8, 8, 0)
    shard = write_shard(
        tmp_path / "a.tar",
        {"1.png": image, "1.seg.png": image, "2.large.jpg": image, "3-masklabel.png": image, ".4.png": image},
    )
    result = scan(shard)
    assert names(result, shard) == ["1.png", "2.large.jpg"]
    assert reasons(result) == {".4.png": "a hidden file"}


def test_a_folder_of_shards(tmp_path: Path) -> None:
    for part in ("train/0001", "train/0000", "0002"):
        draw_shard(tmp_path / f"{part}.tar", sizes=[(8, 8)] * 2)
    result = scan(tmp_path)
    assert names(result, tmp_path)[:3] == ["0002.tar/0000.png", "0002.tar/0001.png", "train/0000.tar/0000.png"]
    assert len(result.images) == 6


def test_an_archive_beside_its_images_is_not_used_twice(images: Path) -> None:
    draw_shard(images / "backup.tar", sizes=[(8, 8)])
    result = scan(images)
    assert len(result.images) == 5
    assert "next to image files" in reasons(result)["backup.tar"]


def test_a_compressed_archive_is_named_where_nothing_else_is_found(tmp_path: Path, images: Path) -> None:
    (tmp_path / "only").mkdir()
    for folder in (tmp_path / "only", images):
        (folder / "a.tar.gz").write_bytes(b"x")
    assert "unpack it" in reasons(scan(tmp_path / "only"))["a.tar.gz"]
    assert reasons(scan(images)) == {}


def test_a_damaged_shard_is_named_and_what_is_whole_is_used(tmp_path: Path) -> None:
    shard = draw_shard(tmp_path / "cut.tar", sizes=[(8, 8)] * 4)
    last = max(offset for offset, _ in shard_index(shard).members.values())
    shard.write_bytes(shard.read_bytes()[: last + 1])
    (tmp_path / "none.tar").write_bytes(b"no archive at all" * 100)
    (tmp_path / "empty.tar").write_bytes(b"")
    result = scan(tmp_path)
    assert len(result.images) == 4
    assert reasons(result)["cut.tar"] == "cut off in the middle of 0003.json"
    assert reasons(result)["none.tar"].startswith("not a readable tar file")
    assert reasons(result)["empty.tar"].startswith("not a readable tar file")


def test_a_broken_image_in_a_shard_is_named(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "a.tar", {"a.png": b"no image", "b.png": b"", "c.png": image_bytes(8, 8, 0)})
    result = scan(shard)
    assert names(result, shard) == ["c.png"]
    assert reasons(result) == {"a.png": "not a readable image", "b.png": "an empty file"}


def test_files_of_one_name_in_a_shard_are_reported(tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    with tarfile.open(shard, "w") as tar:
        for index in range(2):
            content = image_bytes(8 + index, 8, index)
            member = tarfile.TarInfo("a.png")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    result = scan(shard)
    assert [p.width_px for p in result.images] == [9]
    assert "name of an earlier one" in reasons(result)["a.tar"]


def test_links_and_folders_in_a_shard_are_no_images(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, kind in (("folder.png", tarfile.DIRTYPE), ("link.png", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    assert scan(tmp_path / "a.tar") == Scan((), ())


# -- an index of earlier scans


def test_unchanged_images_are_not_opened_again(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = draw_shard(tmp_path / "a.tar", sizes=[(8, 8)] * 3)
    sources = (images, shard)
    index = image_index(tmp_path / "cache")
    first = [scan(s, index=index) for s in sources]
    assert not (tmp_path / "cache").exists()
    index.save()
    again = image_index(tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr("modules.data.scan.open_image", None)
        assert [scan(s, index=again) for s in sources] == first
    draw_image(30, 20, 7).save(images / "002.png")
    changed = scan(images, index=again)
    assert [p.width_px for p in changed.images] == [64, 64, 30, 96, 96]
    assert image_index(None).others.find(images, size_bytes=1, mtime_ns=1) is None


def test_a_file_that_could_not_be_read_is_tried_again(tmp_path: Path) -> None:
    index = image_index(None)
    (tmp_path / "a.png").write_bytes(b"x" * 100)
    assert scan(tmp_path, index=index).images == ()
    content = image_bytes(8, 8, 0)
    (tmp_path / "a.png").write_bytes(content)
    assert len(scan(tmp_path, index=index).images) == 1


def test_a_scan_reports_its_progress_and_can_be_stopped(tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "many", sizes=[(8, 8)] * 230)
    seen: list[tuple[int, int]] = []
    scan(folder, watch=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 230), (100, 230), (200, 230)]

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        scan(folder, watch=stop)


# -- HEIC


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)


@pytest.fixture
def asked_anew() -> None:
    images_module._can_read_heic.cache_clear()


@pytest.mark.usefixtures("asked_anew")
def test_heic_without_its_package_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also under another name, as telephones send them."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    for name in ("a.heic", "b.jpg"):
        (tmp_path / name).write_bytes(HEIC)
    result = scan(tmp_path)
    assert set(reasons(result).values()) == {
        "a HEIC image, which needs the package pillow-heif (python -m trainer install pillow-heif)"
    }


def test_a_missing_file_in_no_archive_stays_missing(tmp_path: Path) -> None:
    with pytest.raises(BrokenImageError, match="No such file"), open_image(tmp_path / "gone.png"):
        pass
    assert archives.archive_of(tmp_path / "a.tar" / "b.png") is None
    assert listing.list_images(tmp_path, include_subfolders=True) == listing.Listing((), ())
    assert tables.row_name(12) == "00000012.row"


def test_a_mask_in_a_shard_belongs_to_its_image(tmp_path: Path) -> None:
    image, mask = image_bytes(16, 8, 0), image_bytes(16, 8, 1)
    shard = write_shard(tmp_path / "a.tar", {"1.png": image, "1-masklabel.png": mask, "2.png": image})
    found = [find_mask(p.path, folder=shard) for p in scan(shard).images]
    assert [f and (f.path.name, f.size_bytes) for f in found] == [("1-masklabel.png", len(mask)), None]


def test_a_mask_may_be_a_field_of_its_sample(tmp_path: Path) -> None:
    """WebDataset names the fields of a sample by what follows the first dot."""
    image, mask = image_bytes(16, 8, 0), image_bytes(16, 8, 1)
    members = {"1.jpg": image, "1.mask.png": mask, "2.large.png": image, "2.mask.png": mask, "3.mask.png": image,
               "4.png": image, "4-masklabel.png": image, "4.mask.png": mask}  # fmt: skip
    shard = write_shard(tmp_path / "a.tar", members)
    result = scan(shard)
    assert names(result, shard) == ["1.jpg", "2.large.png", "3.mask.png", "4.png"]  # 3 is all that its sample has
    found = {i.path.name: find_mask(i.path, folder=shard) for i in result.images[:2] + result.images[3:]}
    assert {n: f and f.path.name for n, f in found.items()} == {
        "1.jpg": "1.mask.png",
        "2.large.png": "2.mask.png",
        "4.png": "4-masklabel.png",
    }
    (tmp_path / "1.mask.png").write_bytes(mask)
    assert find_mask(tmp_path / "1.jpg", folder=tmp_path) is None  # only in shards


@pytest.mark.usefixtures("asked_anew")
def test_a_real_heic_image_is_read_and_scanned(tmp_path: Path) -> None:
    import pillow_heif

    drawn = draw_image(96, 64, 3)
    pillow_heif.from_pillow(drawn).save(tmp_path / "a.heic", quality=100)
    (scanned,) = scan(tmp_path).images
    assert (scanned.width_px, scanned.height_px) == (96, 64)
    with open_image(tmp_path / "a.heic") as image:
        assert np.abs(np.asarray(image.convert("RGB"), int) - np.asarray(drawn, int)).mean() < 8
