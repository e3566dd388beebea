"""The state of the file dialog without Tk: listing, order, selection, answers, completion, places, layout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from modules.system.errors import DarkroomError
from ui.widgets.files import listing
from ui.widgets.files.browser import Browser, DialogAnswer, Enter, Purpose, Rejection, common_start, completions
from ui.widgets.files.listing import Contents, Counts, Entry, count_images, folder_of, natural_order, read_folder
from ui.widgets.files.new_folder import create_folder
from ui.widgets.files.places import mounted_disks, places
from ui.widgets.grid_layout import GridLayout, tile_layout

JSON = (("Config", "*.json"),)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("cats", "dogs", ".cache"):
        (tmp_path / name).mkdir()
    for number in (10, 2, 1):
        (tmp_path / "cats" / f"image{number}.png").write_bytes(b"x" * number)
    (tmp_path / "cats" / "image1.txt").write_text("a cat")
    (tmp_path / "cats" / "notes.txt").write_text("no caption of any image")
    for name in ("b.json", "A.JSON", "notes.md"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def browser(purpose: Purpose, folder: Path, **options: Any) -> Browser:
    made = Browser(purpose, folder, **options)
    made.show(read_folder(folder))
    return made


def names(made: Browser) -> list[str]:
    return [e.name for e in made.shown]


def test_folders_come_first_and_only_files_of_the_kind(tree: Path) -> None:
    made = browser("open", tree, kinds=JSON)
    assert names(made) == ["cats", "dogs", "A.JSON", "b.json"]
    assert made.status() == ("2 folders, 2 files; 1 file of other kinds", "muted")
    made.set_filter(kind=1, show_hidden=True)
    assert names(made) == [".cache", "cats", "dogs", "A.JSON", "b.json", "notes.md"]


def test_numbers_in_names_are_compared_by_value_and_columns_reverse(tree: Path) -> None:
    made = browser("open", tree / "cats", kinds=(("Images", "*.png"),))
    assert names(made) == ["image1.png", "image2.png", "image10.png"]
    made.select(1)
    made.sort_by("name")
    assert names(made) == ["image10.png", "image2.png", "image1.png"]
    assert made.shown[made.cursor].name == "image2.png"
    made.sort_by("size")
    assert names(made) == ["image1.png", "image2.png", "image10.png"]


def test_a_folder_of_images_shows_and_counts_them(tree: Path) -> None:
    made = browser("folders", tree / "cats")
    assert (names(made)[0], made.shows_mostly_images) == ("image1.png", True)
    assert made.status() == ("3 images, 1 caption here", "text")
    made.select(0)
    assert made.selected == frozenset()  # images are only shown
    assert made.answer() == DialogAnswer((tree / "cats",))
    assert count_images(tree / "cats") == Counts(3, 1)
    assert count_images(tree / "nowhere").words() == ""


def test_several_folders_are_selected(tree: Path) -> None:
    made = browser("folders", tree)
    made.move(1)
    made.move(1, extend=True)
    assert made.answer() == DialogAnswer((tree / "cats", tree / "dogs"))
    assert made.status()[0] == "2 folders selected"
    made.select(0, "toggle")
    assert made.answer() == DialogAnswer((tree / "dogs",))
    made.select_all()
    assert made.selected == {0, 1}
    one = browser("folder", tree)
    one.select(0)
    one.select(1, "toggle")
    assert one.answer() == DialogAnswer((tree / "dogs",))


def test_letters_find_entries(tree: Path) -> None:
    made = browser("open", tree)
    assert made.find("no")
    assert made.shown[made.cursor].name == "notes.md"
    assert made.find("son")
    assert made.shown[made.cursor].name == "A.JSON"
    assert not made.find("zebra")


def test_what_a_typed_path_means(tree: Path) -> None:
    made = browser("open", tree)
    assert made.typed("cats") == Enter(tree / "cats")
    assert made.typed("b.json") == DialogAnswer((tree / "b.json",))
    assert made.typed(f'"{tree}/cats/../b.json"') == DialogAnswer((tree / "b.json",))
    assert made.typed("gone") == Rejection(f"{tree / 'gone'} does not exist.")
    assert made.typed("~") == Enter(Path.home())
    assert browser("folder", tree).typed("b.json") == Rejection(f"{tree / 'b.json'} is not a folder.")


def test_a_saved_file_gets_the_ending_of_its_kind_and_replaces_only_when_asked(tree: Path) -> None:
    made = browser("save", tree, kinds=JSON, name="new")
    assert made.answer() == DialogAnswer((tree / "new.json",))
    made.name = "v1.5"
    assert made.answer() == DialogAnswer((tree / "v1.5.json",))
    made.select(names(made).index("b.json"))
    assert (made.name, made.answer()) == ("b.json", DialogAnswer((tree / "b.json",), replaces=True))
    made.name = "cats"
    assert made.answer() == Enter(tree / "cats")
    made.name = "nowhere/new"
    assert made.answer() == Rejection(f"The folder {tree / 'nowhere'} does not exist.")
    made.name = " "
    assert made.answer() == Rejection("Type a name for the file.")


def test_a_folder_that_cannot_be_read_is_said_and_the_list_stays(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = browser("folder", tree)
    before = made.shown

    def refuse(_path: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("ui.widgets.files.listing.os.scandir", refuse)
    made.show(read_folder(tree / "cats"))
    assert made.status() == (f"{tree / 'cats'} cannot be opened: you have no permission to read it.", "error")
    assert (made.folder, made.shown) == (tree, before)
    assert isinstance(made.answer(), Rejection)


def test_a_broken_link_is_listed_as_a_file(tree: Path) -> None:
    (tree / "broken").symlink_to(tree / "gone")
    assert "broken" in names(browser("open", tree))


def test_typing_is_completed() -> None:
    found = ["Cats", "catalogue", "dogs", ".cache"]
    assert completions("/data/ca", found) == ("catalogue", "Cats")
    assert common_start(completions("/data/ca", found)) == "cat"
    assert completions("/data/.", found) == (".cache",)
    assert completions("/data/", found) == ("catalogue", "Cats", "dogs")
    assert common_start(()) == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (" ", "Type a name for the new folder."),
        ("..", ".. stands for an existing folder."),
        ("a/b", "cannot contain /"),
        ("a\nb", "cannot contain a control character"),
        ("what?", "cannot contain ?"),
        ("end.", "cannot end with a dot"),
        ("NUL", "NUL is the name of a device on Windows."),
        ("ä" * 200, "The name is too long"),
        ("cats", "A folder named cats is already in"),
        ("sub.json", "A file named sub.json is already in"),
    ],
)
def test_a_new_folder_needs_a_name_that_every_system_accepts(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "cats").mkdir()
    (tmp_path / "sub.json").touch()
    with pytest.raises(DarkroomError, match=re.escape(words)):
        create_folder(tmp_path, name)
    assert create_folder(tmp_path, " 10 birds ") == tmp_path / "10 birds"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied"), "You have no permission"),
        (FileNotFoundError(2, "No such file"), "does not exist any more"),
        (OSError(28, "No space left on device"), "no space left on device. Free some space"),
    ],
)
def test_a_folder_that_cannot_be_created_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, words: str
) -> None:
    def refuse(_path: Path) -> None:
        raise error

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DarkroomError) as raised:
        create_folder(tmp_path, "new")
    assert words in str(raised.value)


def test_places_are_listed_once_and_only_if_they_exist(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_pictures_path", lambda: tree)
    monkeypatch.setattr(platformdirs, "user_downloads_path", lambda: tree / "gone")
    known = (("Workspace", tree / "cats"), ("Models", tree / "gone"))
    found = places(known, (str(tree / "dogs"), str(tree / "cats"), "/gone"), (tree,))
    assert [(p.heading, p.folder) for p in found] == [
        ("Places", Path.home()), ("Places", tree), ("Places", tree / "cats"), ("Recent folders", tree / "dogs"),
    ]  # fmt: skip
    assert folder_of(tree / "gone" / "deep") == tree


def test_disks_are_read_from_the_mounts(tree: Path) -> None:
    mounts = tree / "mounts"
    mounts.write_text(
        "/dev/sda / ext4\n/dev/sdb /media/me/My\\040Disk vfat\nproc /proc proc\n/dev/sdc /mnt/data ext4\n"
    )
    assert mounted_disks(mounts_file=mounts) == (Path("/"), Path("/media/me/My Disk"), Path("/mnt/data"))


def test_only_visible_cells_are_drawn() -> None:
    rows = GridLayout(20_000, 1, 500, 30)
    assert list(rows.visible(3000, 300)) == list(range(100, 110))
    assert rows.top_to_see(5, 3000, 300) == 150
    assert rows.top_to_see(200, 3000, 300) == 5730
    tiles = tile_layout(10, 500, 120, 140)
    assert (tiles.num_columns, tiles.cell_width, tiles.height) == (4, 125, 420)
    assert tiles.corner(5) == (125, 140)
    assert tiles.at(130, 150) == 5
    assert tiles.at(499, 410) is None
    assert list(tiles.visible(140, 140)) == [4, 5, 6, 7]


def test_twenty_thousand_entries_are_filtered_and_sorted(tree: Path) -> None:
    entries = tuple(Entry(str(tree), f"{n}.png", is_folder=False, size_bytes=-n) for n in range(20_000))
    made = Browser("open", tree, (("Images", "*.png *.jpg"),))
    made.show(Contents(tree, entries))
    made.sort_by("size")
    assert len(made.shown) == 20_000
    assert made.shown[0].name == "19999.png"


def test_a_large_folder_is_sorted_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part holds the interpreter lock for as long as it takes."""
    names = [f"image{n}.png" for n in range(25)] + [f"IMAGE {n}.txt" for n in range(5)]
    for name in names:
        (tmp_path / name).touch()
    lengths: list[int] = []

    def recording(entries: Sequence[Any], **options: Any) -> list[Any]:
        lengths.append(len(entries))
        return sorted(entries, **options)

    monkeypatch.setattr(listing, "_SORTED_AT_ONCE", 4)
    monkeypatch.setattr(listing, "sorted", recording, raising=False)
    found = [entry.name for entry in read_folder(tmp_path).entries]
    assert found == sorted(names, key=natural_order)
    assert max(lengths) == 4
    assert sum(lengths) == len(names)
