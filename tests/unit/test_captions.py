"""Captions: every text beside an image is read, and the choice depends on the seed alone."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.data.captions.drawing import CaptionDropout, CaptionUse, DrawnCaption, cached_texts, draw_caption
from modules.data.captions.operations import NO_CHANGES, CaptionRules
from modules.data.captions.settings import CaptionChoice
from modules.data.captions.sources import CaptionOrigin, CaptionTexts, caption_is_cacheable, decode_text, read_captions


def captions_of(folder: Path, content: bytes) -> CaptionTexts:
    (folder / "cat.txt").write_bytes(content)
    return read_captions(folder / "cat.png", CaptionOrigin())


@pytest.mark.parametrize(
    ("content", "captions", "fault"),
    [
        (b"a cat", ("a cat",), ""),
        (b"a cat\n", ("a cat",), ""),
        (b"a cat\r\nan old cat\r\n", ("a cat", "an old cat"), ""),
        (b"\n\n  a cat  \n \t \nan old cat\n\n", ("a cat", "an old cat"), ""),
        (b"", (), "empty"),
        (b"\n \n\r\n", (), "empty"),
        (b"\xef\xbb\xbf", (), "empty"),
        (b"\xef\xbb\xbfa cat", ("a cat",), ""),
        ("un été à Noël".encode(), ("un été à Noël",), ""),
        ("un été à Noël".encode("cp1252"), ("un été à Noël",), "cp1252"),
        ("“smart” – quotes…".encode("cp1252"), ("“smart” – quotes…",), "cp1252"),
        (b"\x81 a caf\xe9", ("\x81 a café",), "latin-1"),
        ("猫\nпёс".encode("utf-16"), ("猫", "пёс"), "utf-16"),
        ("猫".encode("utf-16-le").join([b"\xff\xfe", b""]), ("猫",), "utf-16"),
        ("猫".encode("utf-16-be").join([b"\xfe\xff", b""]), ("猫",), "utf-16"),
        (b"\xff\xfea", ("\ufffd",), "utf-16"),
    ],
)
def test_text_files(tmp_path: Path, content: bytes, captions: tuple[str, ...], fault: str) -> None:
    assert captions_of(tmp_path, content) == CaptionTexts(captions, fault, tmp_path / "cat.txt")  # type: ignore[arg-type]


@given(content=st.binary(max_size=200))
def test_any_bytes_are_a_text_of_some_kind(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    captions = captions_of(tmp_path_factory.getbasetemp(), content).texts
    assert all(c.strip() == c and c for c in captions)


def test_no_file_no_caption(tmp_path: Path) -> None:
    assert read_captions(tmp_path / "cat.png", CaptionOrigin()) == CaptionTexts((), "missing", tmp_path / "cat.txt")
    (tmp_path / "dog.txt").mkdir()
    assert read_captions(tmp_path / "dog.png", CaptionOrigin()).fault == "missing"


def test_only_the_last_suffix_gives_way(tmp_path: Path) -> None:
    (tmp_path / "cat.v2.txt").write_text("second")
    (tmp_path / "cat.txt").write_text("first")
    assert read_captions(tmp_path / "cat.v2.png", CaptionOrigin()).texts == ("second",)
    assert read_captions(tmp_path / "cat.PNG", CaptionOrigin()).texts == ("first",)


def test_kohyas_extension(tmp_path: Path) -> None:
    (tmp_path / "cat.txt").write_text("a text")
    (tmp_path / "cat.caption").write_text("a caption")
    assert read_captions(tmp_path / "cat.png", CaptionOrigin(extension=".caption")).texts == ("a caption",)


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
    found = read_captions(Path("/nowhere") / name, CaptionOrigin("file_name"))
    assert found == CaptionTexts(captions, "" if captions else "empty")


@pytest.mark.skipif(sys.platform == "win32", reason="file names are text there")
def test_a_file_name_that_is_not_utf_8_is_read_like_a_text_file() -> None:
    """Half a character in a caption ends the run in the tokenizer."""
    name = Path(os.fsdecode("été.png".encode("cp1252")))
    assert read_captions(name, CaptionOrigin("file_name")).texts == ("été",)
    rules = CaptionRules(shuffle=True)
    assert list(cached_texts(("a, b",), rules, name=name.name, run_seed=1))


def test_one_file_holds_the_captions_of_all_images(tmp_path: Path) -> None:
    (tmp_path / "cat.txt").write_text("beside the image")
    shared = tmp_path / "all.txt"
    shared.write_text("a cat\n\na tabby\n")
    for name in ("cat.png", "dog.png"):
        assert read_captions(tmp_path / name, CaptionOrigin("one_file", shared)).texts == ("a cat", "a tabby")
    for nothing in (tmp_path / "none.txt", tmp_path, tmp_path / "a\x00b"):
        found = read_captions(tmp_path / "cat.png", CaptionOrigin("one_file", nothing))
        assert found == CaptionTexts((), "missing", nothing)


def test_a_fixed_text_is_the_caption_of_all_images() -> None:
    origin = CaptionOrigin("fixed_text", fixed_text="a cat\n a tabby \n")
    assert read_captions(Path("/nowhere/cat.png"), origin) == CaptionTexts(("a cat", "a tabby"))
    assert read_captions(Path("/nowhere/cat.png"), CaptionOrigin("fixed_text")).fault == "empty"


def test_a_default_caption_replaces_no_file_that_cannot_be_read(tmp_path: Path) -> None:
    """It did, without a word: a caption on a disk that fails was another one."""
    origin = CaptionOrigin(fixed_text="a cat\n a tabby \n")
    assert read_captions(tmp_path / "cat.png", origin) == CaptionTexts(("a cat", "a tabby"))
    (tmp_path / "cat.txt").mkdir()
    assert read_captions(tmp_path / "cat.png", origin) == CaptionTexts((), "missing", tmp_path / "cat.txt")


# -- which caption is used, and when it is dropped


def draw(
    captions: tuple[str, ...],
    dropout: float = 0.0,
    second: float | None = None,
    rules: CaptionRules = NO_CHANGES,
    *,
    seed: int = 1,
    epoch: int = 0,
    example: int = 0,
    repeat: int = 0,
    use: int = 0,
    draws_anew: bool = False,
) -> DrawnCaption:
    return draw_caption(
        captions,
        rules,
        CaptionUse(seed, epoch, example, repeat, "cat.png", use),
        dropout=CaptionDropout(dropout, second),
        draws_anew=draws_anew,
    )


def test_the_lot_is_a_function_of_its_arguments() -> None:
    lines = tuple("abcdefgh")
    for epoch in range(20):
        assert draw(lines, 0.5, epoch=epoch) == draw(lines, 0.5, epoch=epoch)
    assert len({tuple(draw(lines, seed=s, epoch=e).text for e in range(20)) for s in range(5)}) == 5
    assert len({tuple(draw(lines, example=x, epoch=e).text for e in range(20)) for x in range(5)}) == 5
    assert [draw(lines, repeat=r).text for r in range(9)] != ["a"] * 9


def test_the_drawn_lines_are_those_of_earlier_versions() -> None:
    """A run that is resumed after an update goes on with the captions it would have had."""
    drawn = "".join(draw(tuple("abcdefgh"), 0.2, epoch=e).text or "-" for e in range(24))
    assert drawn == "ehghdfgfdcf-aaaedgcgacaa"


def test_each_line_comes_about_equally_often() -> None:
    counts = Counter(draw(("a", "b", "c", "d"), epoch=e).text for e in range(2000))
    assert all(420 < n < 580 for n in counts.values())


@pytest.mark.parametrize(("choice", "texts"), [("first", "aaaaaa"), ("in_turn", "abcabc")])
def test_lines_in_turn_or_the_first(choice: CaptionChoice, texts: str) -> None:
    rules = CaptionRules(choice=choice)
    assert "".join(draw(("a", "b", "c"), rules=rules, epoch=9, use=n).text for n in range(6)) == texts
    cached = list(cached_texts(("a", "b", "c"), rules, name="cat.png", run_seed=1))
    assert cached == sorted(set(texts))


def test_dropout() -> None:
    assert draw(("a",), 0.0).text == "a"
    assert all(draw(("a",), 1.0, epoch=e) == DrawnCaption("") for e in range(100))
    assert 150 < sum(draw(("a",), 0.1, epoch=e).text == "" for e in range(2000)) < 250


def test_a_dropped_caption_has_no_prefix_and_no_trigger_word() -> None:
    rules = CaptionRules(prefix="photo of", trigger_word="sks")
    assert draw(("a",), 1.0, rules=rules) == DrawnCaption("")
    assert draw(("a",), 0.0, rules=rules) == DrawnCaption("photo of sks, a")
    assert draw((), 0.0, rules=rules) == DrawnCaption("photo of sks")


def test_dropout_for_each_encoder_on_its_own() -> None:
    drawn = [draw(("a",), 0.3, 0.2, epoch=e) for e in range(4000)]
    both, first, second = (
        sum(d == drop for d in drawn)
        for drop in (DrawnCaption(""), DrawnCaption("a", frozenset({0, 2, 3})), DrawnCaption("a", frozenset({1})))
    )
    assert abs(both - 240) < 70  # 4000 * 0.3 * 0.2
    assert abs(first - 960) < 110
    assert abs(second - 560) < 90
    assert draw(("a",), 0.0, 1.0) == DrawnCaption("a", frozenset({1}))
    assert draw(("a",), 1.0, 0.0) == DrawnCaption("a", frozenset({0, 2, 3}))  # the others follow the first
    assert draw((), 1.0, 0.0) == DrawnCaption("")  # nothing to drop


def test_the_second_probability_does_not_change_what_is_drawn_for_the_first() -> None:
    plain = [draw(tuple("abcd"), 0.3, 0.0, epoch=e) for e in range(50)]
    other = [draw(tuple("abcd"), 0.3, 0.9, epoch=e) for e in range(50)]
    assert [0 in p.empty_for for p in plain] == [0 in o.empty_for or not o.text for o in other]


def test_without_captions_the_empty_one_stands() -> None:
    assert draw(()) == DrawnCaption("")
    assert draw((), 0.5) == DrawnCaption("")


# -- variations

SHUFFLED = CaptionRules(shuffle=True, variations=3)
TAGS = ("a, b, c, d, e, f",)


def test_variations_are_used_in_turn_and_are_those_that_are_cached() -> None:
    texts = [draw(TAGS, rules=SHUFFLED, epoch=e, use=e).text for e in range(9)]
    assert texts[:3] == texts[3:6] == texts[6:]
    assert len(set(texts)) == 3
    assert list(cached_texts(TAGS, SHUFFLED, name="cat.png", run_seed=1)) == texts[:3]
    assert list(cached_texts(TAGS, SHUFFLED, name="dog.png", run_seed=1)) != texts[:3]
    assert list(cached_texts(TAGS, SHUFFLED, name="cat.png", run_seed=2)) != texts[:3]


@pytest.mark.parametrize(("lines", "variations"), [(1, 2), (2, 2), (2, 3), (3, 2), (4, 2)])
def test_lines_in_turn_have_all_their_variations(lines: int, variations: int) -> None:
    """Lines and variations that take turns at the same pace leave none unused."""
    rules = CaptionRules(choice="in_turn", shuffle=True, variations=variations)
    texts = tuple(f"{line}a, {line}b, {line}c, {line}d, {line}e, {line}f" for line in range(lines))
    drawn = Counter(draw(texts, rules=rules, epoch=u, use=u).text for u in range(2 * lines * variations))
    assert drawn == Counter(dict.fromkeys(cached_texts(texts, rules, name="cat.png", run_seed=1), 2))


def test_variations_do_not_depend_on_the_number_of_the_image() -> None:
    """An image that is added before the others must not change their cached texts."""
    assert draw(TAGS, rules=SHUFFLED, example=0) == draw(TAGS, rules=SHUFFLED, example=7)


def test_the_seed_of_the_concept_replaces_that_of_the_run() -> None:
    own = CaptionRules(shuffle=True, variations=3, seed=5)
    assert [draw(TAGS, rules=own, seed=s).text for s in (1, 2)] == [draw(TAGS, rules=SHUFFLED, seed=5).text] * 2


def test_uncached_captions_are_drawn_anew_each_time() -> None:
    texts = {draw(TAGS, rules=SHUFFLED, epoch=e, repeat=r, draws_anew=True).text for e in range(10) for r in range(2)}
    assert len(texts) >= 15


def test_what_draws_nothing_has_one_variation() -> None:
    rules = CaptionRules(variations=5, prefix="photo,", wildcards=True, drop_probability=0.0)
    assert list(cached_texts(("a cat", "a {tabby}"), rules, name="cat.png", run_seed=1)) == [
        "photo, a cat",
        *["photo, a tabby"] * 5,
    ]


@given(
    texts=st.lists(st.sampled_from(["a, b, c", "{x|y} z", "one"]), max_size=3).map(tuple),
    choice=st.sampled_from(["random", "in_turn", "first"]),
    variations=st.integers(1, 4),
    epoch=st.integers(0, 50),
    use=st.integers(0, 50),
)
def test_every_drawn_text_is_among_the_cached(
    texts: tuple[str, ...], choice: CaptionChoice, variations: int, epoch: int, use: int
) -> None:
    rules = CaptionRules(
        choice=choice, variations=variations, wildcards=True, shuffle=True, drop_mode="random", drop_probability=0.3
    )
    drawn = draw(texts, rules=rules, epoch=epoch, use=use).text
    assert drawn in set(cached_texts(texts, rules, name="cat.png", run_seed=1))


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


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_read_and_reported(codec: str) -> None:
    assert decode_text("a cat\na dog".encode(codec)) == ("a cat\na dog", "utf-16")
    assert decode_text("黒い猫".encode()) == ("黒い猫", "")


def test_a_caption_may_contain_other_line_separators(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("one\u2028still one\r\ntwo\rthree\n".encode())
    texts = read_captions(tmp_path / "a.png", CaptionOrigin()).texts
    assert texts == ("one\u2028still one", "two", "three")
