"""Images of strangers: the formats that are opened, how much memory they may take, and how many at once."""

from __future__ import annotations

import io
import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import EpsImagePlugin, Image

from modules.data import images
from modules.data.doctor.measure import measure
from modules.data.images import FORMATS, BrokenImageError, MemoryShare, open_image, upright
from modules.data.listing import SUFFIXES
from trainer.export.metadata import thumbnail_of
from trainer.jobs.sample_images import read_settings
from ui.widgets.thumbnails import load_fitted

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
WMF = b"\xd7\xcd\xc6\x9a\x00\x00" + bytes(40)


def test_the_formats_are_those_of_concepts() -> None:
    """Of Pillow's formats those with a suffix that concepts may have; HEIC is of another package."""
    Image.init()
    known = Image.registered_extensions()
    assert set(FORMATS) == {known[suffix] for suffix in SUFFIXES if suffix in known} - {"HEIF"}


def thumbnail(path: Path) -> object:
    samples = path.parent / "samples" / "0"
    samples.mkdir(parents=True)
    path.rename(samples / f"step-1{path.suffix}")
    return thumbnail_of(samples.parent)


READERS: dict[str, Callable[[Path], object]] = {
    "concept": lambda path: open_image(path).__enter__(),
    "thumbnail of the window": lambda path: load_fitted(path, 8, 8),
    "thumbnail of a result": thumbnail,
    "doctor": measure,
    "settings": read_settings,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("content", [EPS, WMF, b"\x89HDF\r\n\x1a\n" + bytes(40)], ids=["EPS", "WMF", "HDF5"])
def test_a_program_called_an_image_is_not_run(
    reader: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[object] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **options: ran.append(given))
    monkeypatch.setattr(EpsImagePlugin.EpsImageFile, "_open", lambda image: ran.append(image))
    path = tmp_path / "cat.png"
    path.write_bytes(content)
    try:
        found = READERS[reader](path)
    except BrokenImageError as error:
        assert error.reason == "not a readable image"  # noqa: PT017 - one of the readers returns nothing instead
    else:
        assert found in ({}, "")
    assert not ran


def png(width_px: int, height_px: int, colour_type: int, bits: int = 8) -> bytes:
    """The beginning of a PNG of any size: enough for its header to be read."""
    header = width_px.to_bytes(4, "big") + height_px.to_bytes(4, "big") + bytes([bits, colour_type, 0, 0, 0])
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big") for kind, data in chunks
    )


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_an_image_that_takes_gigabytes_to_decode_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png(13_000, 13_000, 6, 16))  # RGBA of 16 bits: 3.3 GB where Pillow's own limit is not reached
    with pytest.raises(BrokenImageError, match=r"13,000x13,000 .* 4\.1 GB .*2\.1 GB"), open_image(path):
        pass


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(("width_px", "colour_type"), [(13_300, 2), (13_300, 0), (9_400, 6)])
def test_large_photographs_are_not(tmp_path: Path, width_px: int, colour_type: int) -> None:
    path = tmp_path / "large.png"
    path.write_bytes(png(width_px, width_px, colour_type))
    with open_image(path) as image:
        assert image.width == width_px


@pytest.mark.filterwarnings("ignore:Image was not the expected size")
def test_an_icon_that_is_larger_inside_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory says 256 pixels; the PNG in it is what is decoded."""
    content = io.BytesIO()
    Image.new("RGBA", (300, 300)).save(content, "PNG")
    inside = content.getvalue()
    entry = bytes([0, 0, 0, 0]) + (1).to_bytes(2, "little") + (32).to_bytes(2, "little")
    path = tmp_path / "icon.ico"
    path.write_bytes(b"\0\0\1\0\1\0" + entry + len(inside).to_bytes(4, "little") + (22).to_bytes(4, "little") + inside)
    with open_image(path) as image:
        assert upright(image).size == (300, 300)
    monkeypatch.setattr(images, "_MAX_BYTES", 256 * 256 * 24)
    with pytest.raises(BrokenImageError, match="300x300"), open_image(path) as image:
        upright(image)


def test_images_that_are_decoded_at_once_share_their_memory() -> None:
    share = MemoryShare(100)
    running, most, lock = 0, 0, threading.Lock()
    first_two = threading.Barrier(2)

    def decode(num_bytes: int) -> None:
        nonlocal running, most
        with share.take(num_bytes):
            with lock:
                running += num_bytes
                most = max(most, running)
            if num_bytes == 50:
                first_two.wait(120)
            with lock:
                running -= num_bytes

    threads = [threading.Thread(target=decode, args=(n,)) for n in (50, 50, 60, 60, 100, 1_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert most <= 1_000  # the one that is larger than the share had it alone
    assert share.taken_bytes == 0


def test_a_thread_does_not_wait_for_itself() -> None:
    share = MemoryShare(100)
    with share.take(100), share.take(100):
        assert share.taken_bytes == 200
    assert share.taken_bytes == 0


def test_opening_takes_and_returns_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    monkeypatch.setattr(images, "_SMALL_BYTES", 0)
    with open_image(tmp_path / "a.png"):
        assert images.DECODING.taken_bytes == 40 * 30 * 12
    assert images.DECODING.taken_bytes == 0
    with pytest.raises(BrokenImageError), open_image(tmp_path / "a.png"):
        raise OSError("the file ends in the middle of the image")
    assert images.DECODING.taken_bytes == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_a_pipe_is_not_an_image(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(BrokenImageError, match="not a file"), open_image(tmp_path / "a.png"):
        pass
