"""The concepts as the page shows them, without a window: cards, filter, scans, and the commands on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from modules.config.schema import Config
from modules.data.concept import Concept
from tests.ui.test_pump import Clockwork, turn_until
from ui.features.concepts.cards import CardFilter
from ui.features.concepts.model import ConceptsModel
from ui.forms.model import FormModel
from ui.loop.pump import Pump

KINDS = {"training": "Training", "validation": "Validation"}


class Desk:
    """A model with its form and pump; `selected` is what it asked the page to select."""

    def __init__(self, *concepts: Concept) -> None:
        self.form = FormModel(Config(concepts=concepts))
        self.pump = Pump(Clockwork().after)
        self.model = ConceptsModel(self.form, self.pump, KINDS)
        self.selected: list[list[int]] = []
        self.num_changes = 0
        self.model.added.subscribe(self.selected.append)
        self.model.changed.subscribe(self._count)
        self.model.follow()

    def _count(self) -> None:
        self.num_changes += 1

    @property
    def names(self) -> list[str]:
        return [Path(concept.path).name for concept in self.form.config.concepts]

    def wait_until(self, condition: Callable[[], object]) -> None:
        turn_until(self.pump, condition)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    for name in "abc":
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "one.png")
    return [tmp_path / name for name in "abc"]


def plain(*names: str) -> Desk:
    return Desk(*(Concept(path=f"/sets/{name}") for name in names))


def test_folders_files_and_archives_become_concepts_once_each(folders: list[Path], tmp_path: Path) -> None:
    desk, archive = Desk(), tmp_path / "shard.tar"
    archive.touch()
    assert "Add the folders" in desk.model.empty_note
    desk.model.add_folders([folders[0], folders[1] / "one.png", folders[1], archive])
    desk.wait_until(lambda: desk.selected)
    assert desk.names == ["a", "b", "shard.tar"]
    assert desk.selected == [[0, 1, 2]]
    assert not desk.model.empty_note
    desk.form.undo()
    assert desk.names == []


def test_cards_follow_the_scans(folders: list[Path]) -> None:
    desk = Desk(Concept(path=str(folders[0])))
    assert desk.model.cards[0].figures == "scanning…"
    desk.wait_until(lambda: desk.model.cards[0].figures == "1 image")
    assert desk.model.summary == "1 concept, 1 image in use"
    assert "1 without a caption" in desk.model.tip(0)
    assert (desk.model.tip(None), desk.model.tip(7)) == ("", "")
    Image.new("RGB", (8, 8)).save(folders[0] / "two.png")
    desk.model.scan_again()
    desk.wait_until(lambda: desk.model.cards[0].figures == "2 images")
    assert len(desk.model.grid_cards) == 1


def test_a_filter_leaves_some_cards_and_is_cleared_for_a_hidden_one() -> None:
    desk, cleared = plain("cats", "dogs", "mice"), list[bool]()
    desk.model.filter_cleared.subscribe(lambda: cleared.append(True))
    assert desk.model.use_filter(CardFilter(text="dogs"))
    assert not desk.model.use_filter(CardFilter(text="dogs"))
    assert [card.name for card in desk.model.visible] == ["dogs"]
    assert desk.model.indices_of([0]) == [1]
    assert desk.model.reveal([1]) == [0]
    assert not cleared
    assert desk.model.reveal([2]) == [2]
    assert cleared == [True]
    desk.model.use_filter(CardFilter(text="no such"))
    assert "No concept matches" in desk.model.empty_note


def test_concepts_are_switched_off_and_on() -> None:
    desk = plain("cats", "dogs", "mice")
    enabled = lambda: [concept.enabled for concept in desk.form.config.concepts]  # noqa: E731
    desk.model.toggle([1, 2])
    assert (enabled(), desk.model.num_disabled) == ([True, False, False], 2)
    desk.model.toggle([0, 1])  # all as the first
    assert enabled() == [False, False, False]
    desk.model.use_filter(CardFilter(text="mice"))
    desk.model.toggle_visible(to=True)
    desk.model.toggle([])
    assert enabled() == [False, False, True]


def test_concepts_are_cloned_moved_and_removed() -> None:
    desk = plain("a", "b", "c", "d")
    assert desk.model.clone([1]) == [2]
    assert desk.names == ["a", "b", "b", "c", "d"]
    assert desk.model.move([4], 0) == [0]
    assert desk.names == ["d", "a", "b", "b", "c"]
    assert desk.model.step([1], -1) == [0]
    assert desk.model.step([0], -1) == [0]  # the first one stays
    assert desk.names == ["a", "d", "b", "b", "c"]
    assert desk.model.step([4], 1) == [4]
    assert desk.model.step([0], 1) == [1]
    assert desk.model.remove([2, 3]) == "2 concepts"
    assert desk.names == ["d", "a", "c"]
    assert desk.model.remove([0]) == "d"
    desk.form.undo()
    assert desk.names == ["d", "a", "c"]


def test_cards_are_moved_among_those_that_the_filter_leaves() -> None:
    desk = plain("a1", "b", "a2", "c", "a3")
    desk.model.use_filter(CardFilter(text="a"))
    desk.model.use_filter(CardFilter(text="/a"))
    assert desk.model.move_to_card([4], 1) == [2]  # before the second card
    assert desk.names == ["a1", "b", "a3", "a2", "c"]
    assert desk.model.move_to_card([0], 3) == [3]  # behind the last card
    assert desk.names == ["b", "a3", "a2", "a1", "c"]


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("concepts", (None, False)),
        ("concepts.1", (1, False)),
        ("concepts.1.image.flip", (1, True)),
        ("concepts.2", None),
        ("concepts_file", None),
        ("data.masked", None),
    ],
)
def test_a_path_leads_to_a_concept_or_elsewhere(path: str, place: tuple[int | None, bool] | None) -> None:
    assert plain("a", "b").model.locate(path) == place


def test_a_dialog_opens_next_to_the_newest_folder_that_exists(folders: list[Path]) -> None:
    desk = Desk(Concept(path=str(folders[0])), Concept(path="/gone/away"), Concept())
    assert desk.model.folder_to_start == folders[0].parent
    assert desk.model.folder_of(0) == folders[0]
    assert Desk().model.folder_to_start.is_dir()
