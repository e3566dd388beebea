"""A caption file in an editor: what is not changed is written back byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.data.captions.caption_file import parse_caption_file, read_caption_file, with_text
from modules.data.captions.sources import decode_text

LINES = st.lists(st.tuples(st.text("ab ,é雪", max_size=6), st.sampled_from(["\n", "\r\n", "\r"])), max_size=6)


@given(st.binary(max_size=60))
def test_any_content_is_written_back_or_not_editable(content: bytes) -> None:
    file = parse_caption_file(content)
    if file.is_editable:
        assert with_text(file, file.text) == content
        again = with_text(file, f"{file.text}x")
        if file.text:
            assert parse_caption_file(again).text == f"{file.text}x"
    else:
        with pytest.raises(ValueError, match="not editable"):
            with_text(file, "x")


@given(LINES, st.sampled_from([("utf-8", b""), ("utf-8", b"\xef\xbb\xbf"), ("utf-16-le", b"\xff\xfe")]), st.data())
def test_a_changed_line_leaves_all_others_as_they_are(
    lines: list[tuple[str, str]], form: tuple[str, bytes], data: st.DataObject
) -> None:
    codec, mark = form
    whole = "".join(line + end for line, end in lines)
    file = parse_caption_file(mark + whole.encode(codec))
    shown = file.text.split("\n")
    place = data.draw(st.integers(0, len(shown) - 1))
    shown[place] = "another caption"
    written = with_text(file, "\n".join(shown))
    assert written.startswith(mark)
    parts = parse_caption_file(written)
    assert parts.ends == file.ends
    assert parts.text == "\n".join(shown)


def test_added_and_removed_lines_keep_the_ends_of_the_others() -> None:
    file = parse_caption_file(b"one\r\ntwo\nthree\r\n")
    assert file.text == "one\ntwo\nthree\n"
    assert with_text(file, "one\nnew\ntwo\nthree\n") == b"one\r\nnew\r\ntwo\nthree\r\n"
    assert with_text(file, "one\nthree\n") == b"one\r\nthree\r\n"
    assert with_text(file, "one\ntwo\nthree") == b"one\r\ntwo\nthree"


def test_an_encoding_stays_where_the_text_fits_into_it() -> None:
    old = parse_caption_file("caf\xe9, \x93quoted\x94".encode("latin-1"))
    assert old.codec == "cp1252"
    assert with_text(old, f"{old.text}, é") == old.content + ", é".encode("cp1252")
    assert with_text(old, "雪").decode("utf-8") == "雪"


def test_a_missing_file_has_no_content(tmp_path: Path) -> None:
    file = read_caption_file(tmp_path / "no.txt")
    assert file.content is None
    assert with_text(file, "a\nb") == b"a\nb"


@given(st.binary(max_size=40))
def test_the_reader_and_the_editor_agree(content: bytes) -> None:
    file = parse_caption_file(content)
    text, _ = decode_text(content)
    assert text.replace("\r\n", "\n").replace("\r", "\n") == file.text
