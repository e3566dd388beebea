"""Captions: every text beside an image is read, and the choice depends on the seed alone."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.data.captions import caption_is_cacheable, choose_caption, read_captions
from tests.unit.strategies import steady


def captions_of(folder: Path, content: bytes) -> tuple[str, ...]:
    (folder / "cat.txt").write_bytes(content)
    return read_captions(folder / "cat.png", "text_file")


@pytest.mark.parametrize(
    ("content", "captions"),
    [
        (b"a cat", ("a cat",)),
        (b"a cat\n", ("a cat",)),
        (b"a cat\r\nan old cat\r\n", ("a cat", "an old cat")),
        (b"\n\n  a cat  \n \t \nan old cat\n\n", ("a cat", "an old cat")),
        (b"", ()),
        (b"\n \n\r\n", ()),
        (b"\xef\xbb\xbf", ()),
        (b"\xef\xbb\xbfa cat", ("a cat",)),
        ("un été à Noël".encode(), ("un été à Noël",)),
        ("un été à Noël".encode("cp1252"), ("un été à Noël",)),
        ("“smart” – quotes…".encode("cp1252"), ("“smart” – quotes…",)),
        ("猫\nпёс".encode("utf-16"), ("猫", "пёс")),
        ("猫".encode("utf-16-le").join([b"\xff\xfe", b""]), ("猫",)),
        ("猫".encode("utf-16-be").join([b"\xfe\xff", b""]), ("猫",)),
        (b"\xff\xfea", ("\ufffd",)),
    ],
)
def test_text_files(tmp_path: Path, content: bytes, captions: tuple[str, ...]) -> None:
    assert captions_of(tmp_path, content) == captions


@steady
@given(content=st.binary(max_size=200))
def test_any_bytes_are_a_text_of_some_kind(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    captions = captions_of(tmp_path_factory.getbasetemp(), content)
    assert all(c.strip() == c and c for c in captions)


def test_no_file_no_caption(tmp_path: Path) -> None:
    assert read_captions(tmp_path / "cat.png", "text_file") == ()
    (tmp_path / "dog.txt").mkdir()
    assert read_captions(tmp_path / "dog.png", "text_file") == ()


def test_only_the_last_suffix_gives_way(tmp_path: Path) -> None:
    (tmp_path / "cat.v2.txt").write_text("second")
    (tmp_path / "cat.txt").write_text("first")
    assert read_captions(tmp_path / "cat.v2.png", "text_file") == ("second",)
    assert read_captions(tmp_path / "cat.PNG", "text_file") == ("first",)


@pytest.mark.parametrize(
    ("name", "captions"),
    [
        ("an_old_cat.png", ("an old cat",)),
        ("_cat_.png", ("cat",)),
        ("cat.v2.png", ("cat.v2",)),
        ("___.png", ()),  # was one empty caption, which counted as a caption
    ],
)
def test_file_names(name: str, captions: tuple[str, ...]) -> None:
    assert read_captions(Path("/nowhere") / name, "file_name") == captions


@pytest.mark.skipif(sys.platform == "win32", reason="file names are text there")
def test_a_file_name_that_is_not_utf_8_is_read_like_a_text_file() -> None:
    """Half a character in a caption ends the run in the tokenizer."""
    assert read_captions(Path(os.fsdecode("été.png".encode("cp1252"))), "file_name") == ("été",)


def draw(captions: tuple[str, ...], dropout: float = 0.0, *, seed: int = 1, epoch: int = 0, example: int = 0) -> str:
    return choose_caption(captions, dropout=dropout, run_seed=seed, epoch=epoch, example=example, repeat=0)


def test_the_lot_is_a_function_of_its_arguments() -> None:
    lines = tuple("abcdefgh")
    for epoch in range(20):
        assert draw(lines, 0.5, epoch=epoch) == draw(lines, 0.5, epoch=epoch)
    assert len({tuple(draw(lines, seed=s, epoch=e) for e in range(20)) for s in range(5)}) == 5
    assert len({tuple(draw(lines, example=x, epoch=e) for e in range(20)) for x in range(5)}) == 5
    assert [choose_caption(lines, dropout=0, run_seed=1, epoch=0, example=0, repeat=r) for r in range(9)] != ["a"] * 9


def test_each_line_comes_about_equally_often() -> None:
    counts = Counter(draw(("a", "b", "c", "d"), epoch=e) for e in range(2000))
    assert all(420 < n < 580 for n in counts.values())


def test_dropout() -> None:
    assert draw(("a",), 0.0) == "a"
    assert all(draw(("a",), 1.0, epoch=e) == "" for e in range(100))
    assert 150 < sum(draw(("a",), 0.1, epoch=e) == "" for e in range(2000)) < 250


def test_without_captions_the_empty_one_stands() -> None:
    assert draw(()) == ""
    assert draw((), 0.5) == ""


def test_one_file_holds_the_captions_of_all_images(tmp_path: Path) -> None:
    (tmp_path / "cat.txt").write_text("beside the image")
    shared = tmp_path / "all.txt"
    shared.write_text("a cat\n\na tabby\n")
    for name in ("cat.png", "dog.png"):
        assert read_captions(tmp_path / name, "one_file", shared) == ("a cat", "a tabby")
    for nothing in (tmp_path / "none.txt", tmp_path, tmp_path / "a\x00b"):
        assert read_captions(tmp_path / "cat.png", "one_file", nothing) == ()


# -- which captions are cached


@pytest.mark.parametrize(
    ("caption", "text_encoder_trains", "trained_tokens", "is_cacheable"),
    [
        ("a cat", False, (), True),
        ("", False, ("<me>",), True),
        ("a photo of <me>", False, ("<me>",), False),
        ("a photo of <me>", False, ("<you>", "<me>"), False),
        ("a photo of me", False, ("<me>",), True),
        ("a cat", True, (), False),
        ("", True, (), False),
    ],
)
def test_captions_whose_states_change_are_not_cached(
    caption: str, text_encoder_trains: bool, trained_tokens: tuple[str, ...], is_cacheable: bool
) -> None:
    found = caption_is_cacheable(caption, text_encoder_trains=text_encoder_trains, trained_tokens=trained_tokens)
    assert found is is_cacheable
