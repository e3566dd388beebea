"""All captions of a concept in one grid: which are listed, edits, the trigger word, undo, and the way of the keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.data.concept import Concept
from tests.ui.conftest import Window
from ui.features.captions.all_captions import AllCaptions
from ui.features.captions.all_captions_window import AllCaptionsWindow
from ui.features.captions.image_set import Source
from ui.features.captions.replacing import phrase_changes
from ui.forms import items
from ui.loop.background import Background


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "images"
    place.mkdir()
    for name in "abc":
        Image.new("RGB", (24, 16)).save(place / f"{name}.png")
    (place / "a.txt").write_bytes(b"red cat, sitting\r\na cat that sits\r\n")
    (place / "b.txt").write_text("blue sky")
    return place


def after(place: Any, phrase: str, text: str) -> str:
    changes = phrase_changes(place, phrase, {Path("a.txt"): text})
    return changes[0].after if changes else text


@pytest.mark.parametrize(
    ("place", "text", "changed"),
    [
        ("first", "a cat", "zog, a cat"),
        ("first", "zog, a cat", "zog, a cat"),
        ("first", "zoga cat", "zog, zoga cat"),
        ("first", "", "zog"),
        ("first", "one\n\ntwo", "zog, one\n\nzog, two"),
        ("last", "a cat,", "a cat, zog"),
        ("last", "a cat, Zog", "a cat, Zog"),
        ("remove", "zog, a cat, zog", "a cat"),
        ("remove", "zog", ""),
        ("remove", "a zog, a cat", "a zog, a cat"),
    ],
)
def test_a_phrase_is_put_where_it_is_not_yet(place: str, text: str, changed: str) -> None:
    assert after(place, " zog, ", text) == changed
    assert after(place, " ", text) == text


class Desk:
    """The model with its background, turned by the test."""

    def __init__(self, folder: Path) -> None:
        self.background = Background()
        self.model = AllCaptions(Source(folder, "x"), self.background)
        self.model.open(Source(folder, "x"))
        self.wait_until(lambda: not self.model.is_reading)

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            self.background.drain(time.perf_counter() + 0.01)
            assert time.monotonic() < deadline

    def at_rest(self) -> None:
        self.wait_until(lambda: not self.model._waiting)

    def names(self) -> list[str]:
        return [image.stem for image in self.model.images]


def test_images_are_listed_by_words_that_their_captions_have_or_lack(folder: Path) -> None:
    desk = Desk(folder)
    assert desk.names() == ["a", "b", "c"]
    desk.model.list("with", "CAT red")
    assert desk.names() == ["a"]
    desk.model.list("without", "cat")
    assert desk.names() == ["b", "c"]
    desk.model.list("empty", "cat")
    assert desk.names() == ["c"]


def test_what_is_still_being_written_is_not_of_the_folder_that_is_opened_next(folder: Path, tmp_path: Path) -> None:
    desk, other = Desk(folder), tmp_path / "other"
    other.mkdir()
    desk.model.edit(folder / "a.png", "green cat")
    deadline = time.monotonic() + 120
    while desk.background._results.empty():  # it is written, and not yet delivered
        assert time.monotonic() < deadline
    desk.model.open(Source(other, "y"))
    desk.at_rest()
    desk.wait_until(lambda: not desk.model.is_reading)
    assert (folder / "a.txt").read_text().startswith("green cat")
    assert desk.model.set.texts == {}


def test_what_was_changed_in_the_last_folder_is_not_undone_in_the_next_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ui.features.captions.all_captions._MAX_AT_ONCE", 2)
    desk, other = Desk(folder), tmp_path / "other"
    other.mkdir()
    desk.model.write(phrase_changes("first", "zog", desk.model.texts))  # too many to wait for
    desk.model.open(Source(other, "y"))
    desk.at_rest()
    assert (folder / "c.txt").read_text() == "zog"
    assert not desk.model.can_undo


def test_edits_are_written_in_their_order_and_taken_back_to_the_last_byte(folder: Path) -> None:
    desk = Desk(folder)
    model, before = desk.model, {file.name: file.read_bytes() for file in folder.glob("*.txt")}
    model.edit(folder / "a.png", "red cat, standing\na cat that sits\n")
    model.write(phrase_changes("first", "zog", model.texts))  # before the edit is written
    model.edit(folder / "b.png", model.text_of(folder / "b.png"))
    assert not model.can_undo
    desk.at_rest()
    assert (folder / "a.txt").read_bytes() == b"zog, red cat, standing\r\nzog, a cat that sits\r\n"
    assert (folder / "c.txt").read_text() == "zog"
    assert model.message == "Changed 3 captions."
    for _ in range(2):
        model.undo()
        desk.at_rest()
    assert not model.can_undo
    assert {file.name: file.read_bytes() for file in folder.glob("*.txt")} == before
    assert model.text_of(folder / "c.png") == ""


def test_a_file_that_another_program_changed_is_left_alone_and_shown_as_it_is(folder: Path) -> None:
    desk = Desk(folder)
    (folder / "b.txt").write_text("theirs")
    desk.model.edit(folder / "b.png", "mine")
    desk.wait_until(lambda: desk.model.text_of(folder / "b.png") == "theirs")
    assert "b.txt was left alone" in desk.model.message
    assert (folder / "b.txt").read_text() == "theirs"


def test_what_waits_is_written_when_the_window_closes(folder: Path) -> None:
    desk = Desk(folder)
    desk.model.edit(folder / "b.png", "one")
    desk.model.edit(folder / "b.png", "two")
    desk.model.flush()
    assert (folder / "b.txt").read_text() == "two"
    desk.at_rest()
    assert (folder / "b.txt").read_text() == "two"


def test_the_window_edits_searches_and_adds_the_trigger_word(window: Window, folder: Path) -> None:
    for number in range(60):
        Image.new("RGB", (24, 16)).save(folder / f"n{number:02}.png")
    context = window.app.context
    items.add(context.form, "concepts", [Concept(path=str(folder))])
    page: Any = window.open_page("concepts")
    window.wait_until(lambda: page.model.visible[0].share_captioned == 2 / 63, "the scan")
    context.actions.run("all_captions")
    [grid] = [w for w in window.app.root.winfo_children() if isinstance(w, AllCaptionsWindow)]
    window.wait_until(lambda: len(grid.rows.images) == 63, "the captions")
    window.settle()
    rows = grid.rows
    assert 1 < len(rows.cells) < 20, "as many as are in sight"
    first = rows.cells[0]
    assert first.variable.get() == "red cat, sitting\na cat that sits"
    first.variable.set("changed")
    rows.go(first, 1)
    assert context.actions["all_captions"].is_enabled()
    window.wait_until(lambda: (folder / "a.txt").read_bytes() == b"changed\r\n", "the file")
    rows.go(rows.cells[-1], 1)
    assert rows.first > 0, "it scrolls to the next row"
    grid.words.set("blue")
    window.wait_until(lambda: [i.stem for i in rows.images] == ["b"], "the search")
    grid.phrase.set("zog")
    window.wait_until(lambda: grid.buttons["first"].cget("text") == "Put first (1)", "the count")
    grid.choice.set("all")
    grid.words.set("")
    window.wait_until(lambda: grid.buttons["first"].cget("text") == "Put first (63)", "the count of all")
    grid.buttons["first"].invoke()
    window.wait_until(lambda: len(list(folder.glob("*.txt"))) == 63, "the change")
    assert (folder / "b.txt").read_text() == "zog, blue sky"
    window.settle()
    rows.cells[0].area.text.focus_force()
    assert rows.cells[1].variable.get().startswith("zog")
    grid.close()
    window.wait_until(lambda: page.model.visible[0].share_captioned == 1, "the counts of the page")
    context.actions.run("all_captions")
    window.app.close()  # this window before the page, to which it reports what it has written
    assert not [w for w in window.app.root.winfo_children() if isinstance(w, AllCaptionsWindow)]
