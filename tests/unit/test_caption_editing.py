"""The models of the caption editor: documents, tags, find and replace, the list of images."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from modules.data.concept import Concept
from modules.system.errors import DarkroomError
from ui.features.captions.document import CaptionDocument, ConflictError
from ui.features.captions.image_set import (
    Source,
    move_tag,
    read_images,
    source_of,
    suggestions,
    tag_counts,
    tags_of,
    with_tag,
    without_tag,
)
from ui.features.captions.replacing import Search, apply, changes, undo

TAGS = st.lists(st.text("abc_ ", min_size=1, max_size=5).filter(str.strip), min_size=1, max_size=5)


def document(tmp_path: Path, content: bytes) -> CaptionDocument:
    path = tmp_path / "cat.txt"
    path.write_bytes(content)
    return CaptionDocument(path)


def test_nothing_is_written_without_an_edit(tmp_path: Path) -> None:
    caption = document(tmp_path, b"one\r\n\r\ntwo\r\n")
    before = caption.path.stat().st_mtime_ns
    assert not caption.save()
    caption.edit(f"{caption.text}x")
    caption.edit(caption.file.text)
    assert not caption.save()
    assert caption.path.stat().st_mtime_ns == before
    missing = CaptionDocument(tmp_path / "dog.txt")
    missing.edit("")
    assert not missing.save()
    assert not missing.path.exists()


def test_every_line_of_a_caption_file_is_kept(tmp_path: Path) -> None:
    caption = document(tmp_path, b"\xef\xbb\xbffirst\r\nsecond\r\n")
    caption.edit(caption.text.replace("second", "2nd"))
    assert caption.save()
    assert caption.path.read_bytes() == b"\xef\xbb\xbffirst\r\n2nd\r\n"
    caption.revert()
    assert caption.save()
    assert caption.path.read_bytes() == b"\xef\xbb\xbffirst\r\nsecond\r\n"


def test_a_change_by_another_program_is_shown_or_is_a_conflict(tmp_path: Path) -> None:
    caption = document(tmp_path, b"mine")
    caption.path.write_text("theirs")
    assert caption.look_at_disk() == "reloaded"
    assert caption.text == "theirs"
    caption.edit("mine again")
    caption.path.write_text("theirs again")
    assert caption.look_at_disk() == "conflict"
    with pytest.raises(ConflictError):
        caption.save()
    assert caption.path.read_text() == "theirs again"
    caption.keep_mine()
    assert caption.path.read_text() == "mine again"
    caption.revert()
    assert caption.text == "theirs again"


def test_their_version_can_be_taken(tmp_path: Path) -> None:
    caption = document(tmp_path, b"mine")
    caption.edit("mine again")
    caption.path.write_text("theirs")
    caption.take_theirs()
    assert caption.text == "theirs"
    assert not caption.is_edited


def test_a_file_that_cannot_be_kept_is_not_editable(tmp_path: Path) -> None:
    caption = document(tmp_path, b"\xff\xfeone byte too many")
    caption.edit("x")
    assert not caption.is_edited


@given(TAGS, st.data())
def test_tags_are_moved_and_removed_and_nothing_else(tags: list[str], data: st.DataObject) -> None:
    line = ",".join(tags)
    plain = [tag.strip() for tag in tags]
    index, to = data.draw(st.integers(0, len(tags) - 1)), data.draw(st.integers(0, len(tags) - 1))
    assert list(tags_of(without_tag(line, index))) == plain[:index] + plain[index + 1 :]
    moved = [tag for place, tag in enumerate(plain) if place != index]
    moved.insert(to, plain[index])
    assert list(tags_of(move_tag(line, index, to))) == moved
    assert [len(p) - len(p.strip()) for p in move_tag(line, index, to).split(",")] == [
        len(tag) - len(tag.strip()) for tag in tags
    ]


@pytest.mark.parametrize(
    ("line", "tag", "after"),
    [
        ("", "cat", "cat"),
        ("a cat", "sitting", "a cat, sitting"),
        ("a,b", "c", "a,b,c"),
        ("a, b,", "c", "a, b, c"),
        ("a, b", "b", "a, b"),
        ("a, b", " , ", "a, b"),
    ],
)
def test_a_tag_is_added_in_the_way_of_the_line(line: str, tag: str, after: str) -> None:
    assert with_tag(line, tag) == after


def test_suggestions_come_from_the_data_set() -> None:
    sentence = "a long sentence about an old cat that sleeps on a mat for ever"
    counts = tag_counts(["blue_eyes, cat", "blue sky, cat", sentence, "navy blue, cat, blue sky"])
    assert counts["cat"] == 3
    assert sentence not in counts
    assert suggestions("blue", counts) == ("blue sky", "blue_eyes", "navy blue")
    assert suggestions("blue e", counts) == ("blue_eyes",)
    assert suggestions("cat", counts, present=["cat"]) == ()
    assert suggestions(" ", counts) == ()


def files(tmp_path: Path, **texts: bytes) -> dict[Path, str]:
    found = {}
    for name, content in texts.items():
        path = tmp_path / f"{name}.txt"
        path.write_bytes(content)
        found[path] = content.decode().replace("\r\n", "\n")
    return found


def test_replacing_shows_each_change_and_is_undone_at_once(tmp_path: Path) -> None:
    texts = files(tmp_path, a=b"Cat, dog\r\ncat\r\n", b=b"bird", c=b"cat")
    found = changes(Search("cat", "lion"), texts)
    assert [(c.path.stem, c.after, c.num_matches) for c in found] == [("a", "lion, dog\nlion\n", 2), ("c", "lion", 1)]
    (tmp_path / "c.txt").write_text("another program's")
    outcome = apply(found)
    assert (tmp_path / "a.txt").read_bytes() == b"lion, dog\r\nlion\r\n"
    assert [path.stem for path, _ in outcome.left] == ["c"]
    assert (tmp_path / "c.txt").read_text() == "another program's"
    restored = undo(outcome.written)
    assert not restored.left
    assert (tmp_path / "a.txt").read_bytes() == b"Cat, dog\r\ncat\r\n"
    assert undo(outcome.written).left  # it is no longer as it was written


@pytest.mark.parametrize(
    ("search", "text", "after"),
    [
        (Search("cat", "lion", whole_tags=True), "cat, catnip, a cat,cat", "lion, catnip, a cat,lion"),
        (Search("cat", "lion", matches_case=True), "Cat cat", "Cat lion"),
        (Search(r"(\w+) eyes", r"\1-eyed", is_regex=True), "blue eyes", "blue-eyed"),
        (Search("a.c", "\\1", is_regex=False), "a.c abc", "\\1 abc"),
        (Search(r"^", "zog, ", is_regex=True), "one\ntwo", "zog, one\nzog, two"),
        (Search(r",?[ ]*dog", "", is_regex=True), "cat, dog", "cat"),
    ],
)
def test_searches(search: Search, text: str, after: str) -> None:
    assert search.replace(search.pattern(), text)[0] == after


@pytest.mark.parametrize("search", [Search("(", is_regex=True), Search("a", "\\2", is_regex=True)])
def test_an_invalid_search_is_an_error_with_advice(search: Search) -> None:
    with pytest.raises(DarkroomError) as error:
        changes(search, {Path("x.txt"): "a"})
    assert error.value.advice


@given(st.text("ab,. (*", max_size=8), st.text("ab\\1", max_size=4), st.text("ab,. (*", max_size=12))
def test_a_plain_search_is_python_s_own_replace(find: str, replacement: str, text: str) -> None:
    search = Search(find, replacement, matches_case=True)
    found = changes(search, {Path("x"): text})
    assert (found[0].after if found else text) == (text.replace(find, replacement) if find else text)
    assert re.compile(re.escape(find))


def test_the_images_of_a_folder_with_captions_and_masks(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a.png", "b.png", "deep/c.png", "a-masklabel.png"):
        Image.new("L", (4, 4)).save(tmp_path / name)
    (tmp_path / "a.txt").write_text("red cat, sitting")
    (tmp_path / "b.txt").write_text("")
    found = read_images(Source(tmp_path, "x"))
    assert [i.stem for i in found.images] == ["a", "b", "c"]
    assert [i.stem for i in found.filter_images("no_caption", "")] == ["b", "c"]
    assert [i.stem for i in found.filter_images("mask", "")] == ["a"]
    assert [i.stem for i in found.filter_images("all", "cat RED")] == ["a"]
    assert [i.stem for i in read_images(Source(tmp_path, "x", include_subfolders=False)).images] == ["a", "b"]
    changed = found.with_texts({tmp_path / "b.png": "cat, sitting"}).with_mask(tmp_path / "b.png")
    assert changed.counts == Counter({"sitting": 2, "cat": 1, "red cat": 1})
    assert [i.stem for i in changed.filter_images("mask", "")] == ["a", "b"]


def test_a_concept_names_its_files(tmp_path: Path) -> None:
    concept = Concept.model_validate(
        {
            "path": str(tmp_path),
            "caption_extension": ".caption",
            "image": {"mask_source": "folder", "masks_folder": str(tmp_path / "masks")},
        }
    )
    source = source_of(concept)
    assert source.caption_of(tmp_path / "x" / "a.jpg") == tmp_path / "x" / "a.caption"
    assert source.masks_of(tmp_path / "x" / "a.jpg")[0] == tmp_path / "masks" / "x" / "a.png"
    assert not source.note
    assert source_of(concept.model_copy(update={"path": str(tmp_path / "a.PNG")})).folder == tmp_path
    assert source_of(Concept.model_validate({"path": str(tmp_path), "caption_source": "file_name"})).note
