"""Folders of images as people have them: what is found, and what is passed over and why."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import sys
import tarfile
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps, PngImagePlugin, features

from modules.data import images
from modules.data import scan as scan_module
from modules.data.captions.sources import CaptionOrigin
from modules.data.images import BrokenImageError, open_image, upright, upright_size
from modules.data.listing import NOT_READ, SUFFIXES
from modules.data.scan import Scan, scan_folder
from tests.builders.images import draw_image

_ORIENTATION = 0x0112
AVIF = [".avif"] if features.check("avif") else []


def scan(folder: Path, *, include_subfolders: bool = False) -> Scan:
    return scan_folder(folder, include_subfolders=include_subfolders, captions=CaptionOrigin())


def names(result: Scan) -> list[str]:
    return [p.path.name for p in result.images]


def reasons(result: Scan) -> dict[str, str]:
    return {s.path.name: s.reason for s in result.skipped}


def oriented(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    return exif


# -- what is an image


def test_images_with_their_sizes_and_captions(images: Path) -> None:
    result = scan(images)
    assert names(result) == [f"{i:03d}.png" for i in range(5)]
    assert [(p.width_px, p.height_px) for p in result.images] == [(64, 64)] * 3 + [(96, 64)] * 2
    assert [p.captions for p in result.images] == [(f"picture number {i}",) for i in range(5)]
    first = result.images[0]
    status = first.path.stat()
    assert (first.size_bytes, first.mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert result.num_without_caption == 0
    assert result.skipped == ()


def test_an_empty_folder_and_one_that_is_none(tmp_path: Path) -> None:
    assert scan(tmp_path) == Scan((), ())
    with pytest.raises(OSError, match="nowhere"):
        scan(tmp_path / "nowhere")


def test_missing_and_blank_captions_are_counted(tmp_path: Path) -> None:
    for name in ("with", "without", "blank"):
        draw_image(8, 8, 0).save(tmp_path / f"{name}.png")
    (tmp_path / "with.txt").write_text("a cat")
    (tmp_path / "blank.txt").write_text("\n \n")
    result = scan(tmp_path)
    assert result.num_without_caption == 2
    assert [p.captions for p in result.images] == [(), ("a cat",), ()]


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", *AVIF])
def test_every_suffix_in_any_case(tmp_path: Path, suffix: str) -> None:
    kind = {".jfif": "JPEG"}.get(suffix)
    for name in (f"a{suffix}", f"B{suffix.upper()}"):
        draw_image(24, 16, 0).convert("RGB").save(tmp_path / name, format=kind)
    result = scan(tmp_path)
    assert [(p.width_px, p.height_px) for p in result.images] == [(24, 16)] * 2
    assert result.skipped == ()


@pytest.mark.parametrize("kind", ["TGA", "PPM", "SGI", "PCX", "JPEG2000", "DDS", "QOI", "DIB", "ICO"])
def test_rarer_formats(tmp_path: Path, kind: str) -> None:
    Image.init()
    suffix = next(s for s, k in Image.registered_extensions().items() if k == kind)
    draw_image(32, 32, 0).save(tmp_path / f"a{suffix}", format=kind)
    [image] = scan(tmp_path).images
    assert (image.width_px, image.height_px) == (32, 32)


def test_all_that_pillow_decodes_is_an_image() -> None:
    """What is left out needs another program, holds no image, or is a film."""
    Image.init()
    readable = {s for s, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    left_out = {".eps", ".ps", ".emf", ".wmf", ".bufr", ".grib", ".h5", ".hdf", ".iim", ".mpg", ".mpeg"}
    left_out |= {".heics", ".heifs"}  # sequences, which pillow-heif adds once another test has used it
    assert readable - left_out <= SUFFIXES
    assert SUFFIXES - readable <= {".heic", ".heif", ".hif", ".avif", ".avifs", ".jp2"}
    assert not SUFFIXES & left_out


def test_a_wrong_suffix_does_not_matter(tmp_path: Path) -> None:
    draw_image(24, 16, 0).save(tmp_path / "really a png.jpg", format="PNG")
    assert names(scan(tmp_path)) == ["really a png.jpg"]


def test_other_files_are_not_even_mentioned(tmp_path: Path) -> None:
    for name in ("notes.txt", "weights.safetensors", "noending", ".DS_Store", "Thumbs.db"):
        (tmp_path / name).write_bytes(b"x")
    draw_image(8, 8, 0).save(tmp_path / "cat-masklabel.png")
    draw_image(8, 8, 0).save(tmp_path / "cat-condlabel.PNG", format="PNG")
    draw_image(8, 8, 0).save(tmp_path / "cat.png")
    (tmp_path / "folder.png").mkdir()
    result = scan(tmp_path)
    assert names(result) == ["cat.png"]
    assert result.skipped == ()


def test_videos_are_skipped_by_name(tmp_path: Path) -> None:
    draw_image(8, 8, 0).save(tmp_path / "cat.png")
    before = scan(tmp_path).fingerprint
    (tmp_path / "film.MP4").write_bytes(b"x")
    result = scan(tmp_path)
    assert names(result) == ["cat.png"]
    assert [(s.path.name, s.reason.partition(",")[0]) for s in result.skipped] == [("film.MP4", "a video")]
    assert result.fingerprint != before
    assert [s.reason for s in scan(tmp_path / "film.MP4").skipped] == [NOT_READ[".mp4"]]


def test_raw_photos_are_skipped_by_name_unless_the_image_is_next_to_them(tmp_path: Path) -> None:
    """A folder of a camera's files looked empty; of those with a JPEG each, nothing is missed."""
    draw_image(8, 8, 0).save(tmp_path / "IMG_1.JPG")
    for name in ("IMG_1.CR2", "IMG_1.MOV", "IMG_2.NEF", "IMG_3.jxl"):
        (tmp_path / name).write_bytes(b"x")
    found = {s.path.name: s.reason.partition(",")[0] for s in scan(tmp_path).skipped}
    assert found == {"IMG_2.NEF": "a raw photo", "IMG_3.jxl": "a JPEG XL image"}


def test_videos_in_a_shard_are_skipped_by_name(tmp_path: Path) -> None:
    draw_image(8, 8, 0).save(tmp_path / "cat.png")
    (tmp_path / "film.flv").write_bytes(b"x")
    with tarfile.open(tmp_path / "data.tar", "w") as shard:
        for name in ("cat.png", "film.flv"):
            shard.add(tmp_path / name, name)
    result = scan(tmp_path / "data.tar")
    assert names(result) == ["cat.png"]
    assert [(s.path.name, s.reason) for s in result.skipped] == [("film.flv", NOT_READ[".flv"])]


# -- what is none


def test_what_is_passed_over_is_named_with_a_reason(tmp_path: Path) -> None:
    draw_image(8, 8, 0).save(tmp_path / "._1.jpg")
    (tmp_path / ".hidden.png").write_bytes(b"x")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "page.jpg").write_text("<!DOCTYPE html><html><body>403</body></html>")
    (tmp_path / "text.png").write_text("not an image")
    draw_image(200, 200, 0).save(tmp_path / "truncated.png")
    whole = (tmp_path / "truncated.png").read_bytes()
    (tmp_path / "truncated.png").write_bytes(whole[: len(whole) // 2])
    draw_image(8, 8, 0).save(tmp_path / "good.png")
    result = scan(tmp_path)
    assert names(result) == ["good.png"]
    assert reasons(result) == {
        "._1.jpg": "a hidden file",
        ".hidden.png": "a hidden file",
        "empty.png": "an empty file",
        "page.jpg": "not a readable image",
        "text.png": "not a readable image",
        "truncated.png": "cannot be read (the file ends in the middle of the image)",
    }


def test_an_image_of_a_billion_pixels_is_not_decoded(tmp_path: Path) -> None:
    header = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    chunks = b"".join(
        struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d))
        for k, d in ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
    )
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
    assert reasons(scan(tmp_path))["bomb.png"] == "cannot be read (it has more than 178,956,970 pixels)"


def test_a_strip_that_would_take_gigabytes_is_passed_over(tmp_path: Path) -> None:
    Image.new("L", (2, 128)).save(tmp_path / "long.png")
    Image.new("L", (129, 2)).save(tmp_path / "longer.png")
    result = scan(tmp_path)
    assert names(result) == ["long.png"]
    assert reasons(result) == {"longer.png": "more than 64 times as long as wide (129x2)"}


def test_a_file_that_may_not_be_read_or_is_gone_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.png", "b.png", "c.png"):
        draw_image(8, 8, 0).save(tmp_path / name)
    real_open = images.open_file

    def refuse(path: Path) -> BinaryIO:
        if path.name == "a.png":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        if path.name == "b.png":
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return real_open(path)

    monkeypatch.setattr(images, "open_file", refuse)
    result = scan(tmp_path)
    assert names(result) == ["c.png"]
    assert list(reasons(result)) == ["a.png", "b.png"]


WHOLE: dict[str, bytes] = {}


def whole_file(folder: Path, kind: str) -> bytes:
    if kind not in WHOLE:
        file = folder / f"whole.{kind}"
        draw_image(53, 37, 0).save(file, **({"exif": oriented(6)} if kind not in ("gif", "bmp") else {}))
        WHOLE[kind] = file.read_bytes()
        file.unlink()
    return WHOLE[kind]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL", "ignore::PIL.Image.DecompressionBombWarning")
@given(data=st.data(), kind=st.sampled_from(["png", "jpg", "webp", "gif", "bmp", "tiff", *(s[1:] for s in AVIF)]))
def test_a_damaged_file_is_scanned_without_harm(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    content = bytearray(whole_file(folder, kind))
    for _ in range(data.draw(st.integers(0, 5))):
        content[data.draw(st.integers(0, min(len(content), 400) - 1))] = data.draw(st.integers(0, 255))
    file = folder / f"damaged.{kind}"
    file.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 100_000)  # a damaged header may request all memory
        result = scan(folder)
        assert len(result.images) + len(result.skipped) == 1
        try:
            with open_image(file) as image:
                decoded = upright(image).size
        except BrokenImageError:
            return
    if result.images:
        assert (result.images[0].width_px, result.images[0].height_px) == decoded


@pytest.mark.parametrize(
    "error",
    [RuntimeError("Failed to decode"), struct.error("unpack"), SyntaxError("broken PNG"), IndexError(), EOFError(),
     Image.DecompressionBombError("too many pixels"), MemoryError(), TypeError("an integer is required")],
    ids=lambda e: type(e).__name__,
)  # fmt: skip
def test_whatever_pillow_raises_costs_only_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A damaged AVIF raises RuntimeError, and a damaged JPEG sometimes struct.error: either ended the whole scan."""
    for name in ("a.png", "b.png"):
        draw_image(8, 8, 0).save(tmp_path / name)
    identified = images._identify

    def fail(path: Path, file: BinaryIO) -> ImageFile.ImageFile:
        if path.name == "a.png":
            raise error
        return identified(path, file)

    monkeypatch.setattr(images, "_identify", fail)
    result = scan(tmp_path)
    assert names(result) == ["b.png"]
    assert list(reasons(result)) == ["a.png"]


# -- sizes as they are seen


@pytest.mark.parametrize("kind", ["png", "jpg", "webp", "tiff", *(s[1:] for s in AVIF)])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_is_the_one_after_turning(tmp_path: Path, kind: str, orientation: int) -> None:
    """A TIFF lying on its side used to be turned twice."""
    file = tmp_path / f"turned.{kind}"
    draw_image(48, 32, 0).save(file, exif=oriented(orientation))
    image = scan(tmp_path).images[0]
    with Image.open(file) as unturned:
        expected = ImageOps.exif_transpose(unturned)
    assert (image.width_px, image.height_px) == expected.size
    assert expected.size == ((32, 48) if orientation > 4 else (48, 32))
    with open_image(file) as image:
        assert np.array_equal(np.asarray(upright(image)), np.asarray(expected))


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_is_none_turns_nothing(tmp_path: Path, orientation: int) -> None:
    draw_image(48, 32, 0).save(tmp_path / "odd.jpg", exif=oriented(orientation))
    image = scan(tmp_path).images[0]
    assert (image.width_px, image.height_px) == (48, 32)


@pytest.mark.parametrize(
    "exif", [b"Exif\x00\x00garbage!", b"Exif\x00\x00", b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\xff\xff"]
)
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_data_do_no_harm_to_an_image(tmp_path: Path, exif: bytes) -> None:
    """Such an image, which every viewer shows, used to be passed over."""
    file = tmp_path / "camera.jpg"
    draw_image(48, 32, 0).save(file, exif=exif)
    result = scan(tmp_path)
    assert names(result) == ["camera.jpg"], reasons(result)
    with open_image(file) as image:
        assert upright(image).size == (48, 32)


def test_a_png_is_not_decoded_for_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's getexif decodes a whole PNG to look for EXIF data behind the pixels: seconds for a few hundred."""
    draw_image(48, 32, 0).save(tmp_path / "plain.png")
    draw_image(48, 32, 0).save(tmp_path / "turned.png", exif=oriented(6))

    def never(self: PngImagePlugin.PngImageFile) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", never)
    assert [(p.width_px, p.height_px) for p in scan(tmp_path).images] == [(48, 32), (32, 48)]


def test_a_png_with_its_exif_data_behind_the_pixels_is_turned_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "late.png"
    draw_image(48, 32, 0).save(file, exif=oriented(6))
    content = file.read_bytes()
    start = content.index(b"eXIf") - 4
    end = start + 12 + struct.unpack(">I", content[start : start + 4])[0]
    chunk, rest = content[start:end], content[:start] + content[end:]
    file.write_bytes(rest[:-12] + chunk + rest[-12:])  # before IEND
    image = scan(tmp_path).images[0]
    assert (image.width_px, image.height_px) == (32, 48)
    with open_image(file) as image:
        assert upright(image).size == (32, 48)


def test_the_look_at_a_png_leaves_it_decodable(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    draw_image(48, 32, 3).save(file)
    with open_image(file) as image:
        assert upright_size(image) == (48, 32)
        assert np.array_equal(np.asarray(image), np.asarray(draw_image(48, 32, 3)))


# -- folders


def test_sub_folders_only_where_asked_for(tmp_path: Path) -> None:
    for place in (".", "b", "b/deep", "a", ".hidden", "a/.thumbnails"):
        (tmp_path / place).mkdir(exist_ok=True)
        draw_image(8, 8, 0).save(tmp_path / place / "x.png")
        (tmp_path / place / "x.txt").write_text(place)
    assert [p.captions for p in scan(tmp_path).images] == [(".",)]
    deep = scan(tmp_path, include_subfolders=True)
    assert [p.captions[0] for p in deep.images] == ["a", "b/deep", "b", "."]
    assert [p.path for p in deep.images] == sorted(p.path for p in deep.images)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_links_that_lead_back_are_not_followed_for_ever(tmp_path: Path) -> None:
    """A link to the folder above used to give every image forty times."""
    (tmp_path / "a").mkdir()
    draw_image(8, 8, 0).save(tmp_path / "a" / "x.png")
    (tmp_path / "a" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "b").symlink_to(tmp_path / "a", target_is_directory=True)
    (tmp_path / "itself").symlink_to("itself")
    (tmp_path / "itself.png").symlink_to("itself.png")
    (tmp_path / "dangling.png").symlink_to("gone.png")
    assert len(scan(tmp_path, include_subfolders=True).images) == 1


def test_a_sub_folder_that_may_not_be_listed_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to end the scan of all the others."""
    for place in ("closed", "open"):
        (tmp_path / place).mkdir()
        draw_image(8, 8, 0).save(tmp_path / place / "x.png")
    real_scandir = os.scandir

    def refuse(path: Path) -> object:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_scandir(path)

    monkeypatch.setattr(scan_module.os, "scandir", refuse)
    result = scan(tmp_path, include_subfolders=True)
    assert len(result.images) == 1
    assert reasons(result) == {"closed": "a folder that cannot be listed (Permission denied)"}


def test_a_scan_does_not_depend_on_the_order_of_the_disk(tmp_path: Path, images: Path) -> None:
    for order in ([3, 1, 4, 0, 2], [0, 1, 2, 3, 4]):
        folder = tmp_path / str(order[0])
        folder.mkdir()
        for i in order:
            shutil.copy(images / f"{i:03d}.png", folder)
        assert names(scan(folder)) == [f"{i:03d}.png" for i in range(5)]
